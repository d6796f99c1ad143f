// Package dataplanetest holds a data plane in memory, for tests of what stands
// above the data planes. It models what a kernel holds, not which calls were
// made.
package dataplanetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Fake is a data plane whose kernel is a map. Tests may look at it and change
// it from other goroutines.
type Fake struct {
	mu          sync.Mutex
	kernel      map[dataplane.ServiceName]*dataplane.Service
	node        dataplane.Node
	unsupported string
	failure     error
	refuses     map[dataplane.ServiceName]string
	refused     map[dataplane.ServiceName]string
	writes      int
	needsFull   bool
	doubts      bool
	warnings    []string
}

var _ dataplane.Dataplane = (*Fake)(nil)

// NewFake returns a data plane with an empty kernel.
func NewFake() *Fake {
	return &Fake{
		kernel:    map[dataplane.ServiceName]*dataplane.Service{},
		refuses:   map[dataplane.ServiceName]string{},
		refused:   map[dataplane.ServiceName]string{},
		needsFull: true,
	}
}

// Supported implements dataplane.Dataplane.
func (f *Fake) Supported(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unsupported != "" {
		return fmt.Errorf("%s: %w", f.unsupported, dataplane.ErrUnsupported)
	}
	return nil
}

// Apply implements dataplane.Dataplane.
func (f *Fake) Apply(_ context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.needsFull && !r.Full {
		return dataplane.Result{}, fmt.Errorf("the first Apply, or one after an error, is not full")
	}
	if f.failure != nil {
		f.needsFull = true
		return dataplane.Result{}, f.failure
	}
	f.needsFull = false
	f.node = r.Node
	result := dataplane.Result{Kind: v1alpha1.SyncPartial}
	names := maps.Clone(r.Dirty)
	if r.Full || f.doubts {
		f.doubts = false
		result.Kind = v1alpha1.SyncFull
		for name := range r.Services {
			names[name] = struct{}{}
		}
		if r.Prune {
			for name := range f.kernel {
				names[name] = struct{}{}
			}
		}
	}
	for name := range names {
		if f.write(name, r.Services[name]) {
			result.ServicesChanged++
			f.writes++
		}
	}
	result.Refused = maps.Clone(f.refused)
	result.Warnings = slices.Clone(f.warnings)
	result.Chains, result.Rules = f.count()
	return result, nil
}

// write makes the kernel hold svc and reports whether that changed it.
func (f *Fake) write(name dataplane.ServiceName, svc *dataplane.Service) bool {
	delete(f.refused, name)
	held, found := f.kernel[name]
	if svc == nil {
		delete(f.kernel, name)
		return found
	}
	if reason := f.refuses[name]; reason != "" {
		f.refused[name] = reason
		return false
	}
	f.kernel[name] = svc
	return held != svc
}

// Verify implements dataplane.Dataplane.
func (f *Fake) Verify(_ context.Context, r *dataplane.Ruleset) (dataplane.Difference, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure != nil {
		return dataplane.Difference{}, f.failure
	}
	d := dataplane.Difference{}
	for name, svc := range r.Services {
		if f.kernel[name] != svc && f.refused[name] == "" {
			d.Count++
			d.Examples = append(d.Examples, fmt.Sprintf("Service %s differs", name))
		}
	}
	slices.Sort(d.Examples)
	d.Examples = d.Examples[:min(len(d.Examples), dataplane.MaxExamples)]
	d.Chains, d.Rules = f.count()
	return d, nil
}

// Cleanup implements dataplane.Dataplane.
func (f *Fake) Cleanup(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.kernel)
	f.needsFull = true
	return nil
}

// count stands for chains and rules: one chain for each Service, one rule for
// each of its ports.
func (f *Fake) count() (chains, rules int) {
	for _, svc := range f.kernel {
		chains++
		rules += len(svc.Ports)
	}
	return chains, rules
}

// Services lists what the kernel holds, sorted.
func (f *Fake) Services() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for name := range f.kernel {
		names = append(names, name.String())
	}
	slices.Sort(names)
	return names
}

// Service returns what the kernel holds of one Service; nil: nothing.
func (f *Fake) Service(namespace, name string) *dataplane.Service {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kernel[dataplane.ServiceName{Namespace: namespace, Name: name}]
}

// Node returns the node that was last applied.
func (f *Fake) Node() dataplane.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.node
}

// Writes counts the Services written or removed since the start.
func (f *Fake) Writes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes
}

// Plant puts rules into the kernel that nobody asked for.
func (f *Fake) Plant(svc *dataplane.Service) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kernel[svc.Name] = svc
}

// Remove takes a Service's rules out of the kernel, as somebody else would.
func (f *Fake) Remove(namespace, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.kernel, dataplane.ServiceName{Namespace: namespace, Name: name})
}

// Doubt makes the next Apply full even if it is not asked to be, as of a data
// plane that finds the kernel other than it left it.
func (f *Fake) Doubt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.doubts = true
}

// Fail makes every Apply and Verify fail; nil ends that.
func (f *Fake) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failure = err
}

// Lack makes the node lack something; an empty string ends that.
func (f *Fake) Lack(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unsupported = what
	f.needsFull = true
}

// Warn makes every Apply return these warnings; none ends that.
func (f *Fake) Warn(warnings ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.warnings = warnings
}

// Refuse makes the kernel refuse one Service; an empty reason ends that.
func (f *Fake) Refuse(namespace, name, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuses[dataplane.ServiceName{Namespace: namespace, Name: name}] = reason
}

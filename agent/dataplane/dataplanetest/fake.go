// Package dataplanetest has a data plane in memory, for tests of the code above the data planes. It
// models the kernel state, not the calls.
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

// Fake is a data plane whose kernel is a map. It is safe for concurrent use.
type Fake struct {
	mu          sync.Mutex
	kernel      map[dataplane.ServiceName]*dataplane.Service
	node        dataplane.Node
	unsupported string
	failure     error
	refuses     map[dataplane.ServiceName]string
	refused     map[dataplane.ServiceName]string
	reduced     map[dataplane.ServiceName]string
	tries       map[dataplane.ServiceName]int
	writes      int
	needsFull   bool
	doubts      bool
	warnings    []string
	rechecks    int
	audits      int
	mode        v1alpha1.ProxyMode
	lacks       map[v1alpha1.ProxyMode]error
	asked       int
	draining    string
	stays       error
	changes     chan struct{}
	signs       chan dataplane.Change
}

var (
	_ dataplane.Retirer  = (*Fake)(nil)
	_ dataplane.Observer = (*Fake)(nil)
)

// NewFake returns a data plane with an empty kernel.
func NewFake() *Fake {
	return &Fake{
		kernel:    map[dataplane.ServiceName]*dataplane.Service{},
		refuses:   map[dataplane.ServiceName]string{},
		refused:   map[dataplane.ServiceName]string{},
		reduced:   map[dataplane.ServiceName]string{},
		tries:     map[dataplane.ServiceName]int{},
		lacks:     map[v1alpha1.ProxyMode]error{},
		needsFull: true,
		changes:   make(chan struct{}, 1),
		signs:     make(chan dataplane.Change, 1),
	}
}

// Follow implements dataplane.Observer.
func (f *Fake) Follow(ctx context.Context, changed func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.changes:
			changed()
		}
	}
}

// Watch implements dataplane.Observer.
func (f *Fake) Watch(ctx context.Context, changed func(dataplane.Change)) {
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-f.signs:
			changed(c)
		}
	}
}

// Sign reports a change by another program to Watch.
func (f *Fake) Sign(c dataplane.Change) { f.signs <- c }

// Supported implements dataplane.Dataplane.
func (f *Fake) Supported(_ context.Context, r *dataplane.Ruleset) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return f.lacking(r.Mode)
}

func (f *Fake) lacking(mode v1alpha1.ProxyMode) error {
	if f.unsupported != "" {
		return fmt.Errorf("%s: %w", f.unsupported, dataplane.ErrUnsupported)
	}
	return f.lacks[mode]
}

// Apply implements dataplane.Dataplane.
func (f *Fake) Apply(_ context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.lacks[r.Mode]; err != nil {
		return dataplane.Result{}, err
	}
	if f.unsupported != "" && r.Full {
		return dataplane.Result{}, f.lacking(r.Mode)
	}
	if f.mode != "" && f.mode != r.Mode && !r.Full {
		return dataplane.Result{}, fmt.Errorf("the first Apply of another mode is not full")
	}
	if f.needsFull && !r.Full {
		return dataplane.Result{}, fmt.Errorf("the first Apply, or one after an error, is not full")
	}
	if f.failure != nil {
		f.needsFull = true
		return dataplane.Result{}, f.failure
	}
	f.needsFull = false
	f.node, f.mode = r.Node, r.Mode
	if r.Recheck {
		f.rechecks++
	}
	result := dataplane.Result{Kind: v1alpha1.SyncPartial}
	names := map[dataplane.ServiceName]struct{}{}
	maps.Copy(names, r.Dirty)
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
	for name := range f.refused {
		names[name] = struct{}{}
	}
	for name := range names {
		if _, rests := r.Rest[name]; rests && f.refused[name] != "" && r.Services[name] != nil {
			continue
		}
		if _, keep := r.Keep[name]; keep && r.Services[name] != nil && f.kernel[name] != nil {
			continue // the kernel's may be newer
		}
		if f.write(name, r.Services[name]) {
			result.ServicesChanged++
			f.writes++
		}
	}
	result.Rejected, result.Reduced = maps.Clone(f.refused), map[dataplane.ServiceName]*dataplane.Service{}
	for name, reason := range f.reduced {
		if svc := r.Services[name]; svc != nil {
			result.Rejected[name], result.Reduced[name] = reason, svc
		}
	}
	result.Warnings = slices.Clone(f.warnings)
	result.Counts = f.count()
	return result, nil
}

// write writes svc to the kernel and reports whether that changed it.
func (f *Fake) write(name dataplane.ServiceName, svc *dataplane.Service) bool {
	delete(f.refused, name)
	f.tries[name]++
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
func (f *Fake) Verify(_ context.Context, r *dataplane.Ruleset, o dataplane.VerifyOptions) (dataplane.Difference, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.Audit {
		return f.audit(r)
	}
	if f.unsupported != "" {
		return dataplane.Difference{}, fmt.Errorf("%s: %w", f.unsupported, dataplane.ErrUnsupported)
	}
	if f.failure != nil {
		return dataplane.Difference{}, f.failure
	}
	d := dataplane.Difference{Warnings: slices.Clone(f.warnings)}
	for name, svc := range r.Services {
		if _, keep := r.Keep[name]; keep && f.kernel[name] != nil {
			continue
		}
		if f.kernel[name] != svc && f.refused[name] == "" {
			d.Count++
			d.Examples = append(d.Examples, fmt.Sprintf("Service %s differs", name))
		}
	}
	d.Drifted = d.Count > 0
	slices.Sort(d.Examples)
	d.Examples = d.Examples[:min(len(d.Examples), dataplane.MaxExamples)]
	d.Counts = f.count()
	return d, nil
}

func (f *Fake) audit(r *dataplane.Ruleset) (dataplane.Difference, error) {
	f.audits++
	if err := f.lacking(r.Mode); err != nil {
		return dataplane.Difference{}, err
	}
	if f.failure != nil {
		return dataplane.Difference{}, f.failure
	}
	f.needsFull = true // like a data plane that does not know what others write
	a := dataplane.Difference{Warnings: slices.Clone(f.warnings)}
	for name, svc := range r.Services {
		if held := f.kernel[name]; held != svc {
			text := fmt.Sprintf("Service %s differs", name)
			a.Findings = append(a.Findings, dataplane.Finding{Service: name, Key: fmt.Sprintf("%s %p %p", name, held, svc), Text: text})
		}
	}
	if r.Prune {
		for name := range f.kernel {
			if r.Services[name] == nil {
				a.Findings = append(a.Findings, dataplane.Finding{Key: name.String(), Text: fmt.Sprintf("Service %s too many", name)})
			}
		}
	}
	a.Count, a.Counts = len(a.Findings), f.count()
	return a, nil
}

// Audits returns the number of audits.
func (f *Fake) Audits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.audits
}

// Cleanup implements dataplane.Dataplane.
func (f *Fake) Cleanup(context.Context, dataplane.CleanupOptions) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure != nil {
		return f.failure
	}
	clear(f.kernel)
	f.needsFull = true
	return nil
}

// Retire implements dataplane.Retirer.
func (f *Fake) Retire(context.Context, *dataplane.Ruleset) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stays != nil || f.draining != "" {
		return f.draining, f.stays
	}
	clear(f.kernel)
	f.needsFull = true
	return "", nil
}

// Drain makes Retire leave everything, for a reason; an empty one ends that.
func (f *Fake) Drain(why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.draining = why
}

// FailToRetire makes every Retire fail; nil ends that.
func (f *Fake) FailToRetire(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stays = err
}

// Mode returns the mode that was last applied.
func (f *Fake) Mode() v1alpha1.ProxyMode {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mode
}

// LackMode makes the node lack something for one mode; nil ends that.
func (f *Fake) LackMode(mode v1alpha1.ProxyMode, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lacks[mode] = why
}

// Asked returns the number of calls of Supported.
func (f *Fake) Asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

// count counts one chain for each Service, and one rule for each of its ports.
func (f *Fake) count() dataplane.Counts {
	out := dataplane.Counts{}
	for _, svc := range f.kernel {
		out[dataplane.Chains]++
		out[dataplane.Rules] += len(svc.Ports)
	}
	return out
}

// Services returns the Services in the kernel, sorted.
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

// Service returns a Service in the kernel; nil: it is missing.
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

// Writes returns the number of Services written or removed.
func (f *Fake) Writes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes
}

// ChangeFacts reports changed facts of the node to Follow.
func (f *Fake) ChangeFacts() { f.changes <- struct{}{} }

// Rechecks returns the number of successful Applies with Recheck.
func (f *Fake) Rechecks() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rechecks
}

// Plant adds rules of no Service to the kernel.
func (f *Fake) Plant(svc *dataplane.Service) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kernel[svc.Name] = svc
}

// Remove removes a Service's rules from the kernel, like another program.
func (f *Fake) Remove(namespace, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.kernel, dataplane.ServiceName{Namespace: namespace, Name: name})
}

// Doubt makes the next Apply full without a request, as if the kernel had been modified
// externally.
func (f *Fake) Doubt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.doubts = true
}

// Fail makes every Apply, Verify and Cleanup fail; nil ends that.
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

// Warn makes every Apply and Verify return these warnings; none ends that.
func (f *Fake) Warn(warnings ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.warnings = warnings
}

// Tries returns how often an Apply has tried to write one Service.
func (f *Fake) Tries(namespace, name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tries[dataplane.ServiceName{Namespace: namespace, Name: name}]
}

// Refuse makes the kernel reject one Service; an empty reason ends that.
func (f *Fake) Refuse(namespace, name, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuses[dataplane.ServiceName{Namespace: namespace, Name: name}] = reason
}

// Reduce makes one Service lack something that another Service has.
func (f *Fake) Reduce(namespace, name, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reduced[dataplane.ServiceName{Namespace: namespace, Name: name}] = reason
}

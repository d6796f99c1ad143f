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
	rejects     map[dataplane.ServiceName]string
	rejected    map[dataplane.ServiceName]string
	reduced     map[dataplane.ServiceName]string
	tries       map[dataplane.ServiceName]int
	parts       map[dataplane.ServiceName]int
	unfinished  map[dataplane.ServiceName]struct{}
	writes      int
	needsFull   bool
	doubts      bool
	warnings    []string
	rechecks    int
	audits      int
	mode        v1alpha1.ProxyMode
	lacks       map[v1alpha1.ProxyMode]error
	asked       map[v1alpha1.ProxyMode]int
	draining    string
	stays       error
	changes     chan struct{}
	external    chan dataplane.Change
}

var (
	_ dataplane.ModeCleaner = (*Fake)(nil)
	_ dataplane.Observer    = (*Fake)(nil)
)

// NewFake returns a data plane with an empty kernel.
func NewFake() *Fake {
	return &Fake{
		kernel:   map[dataplane.ServiceName]*dataplane.Service{},
		rejects:  map[dataplane.ServiceName]string{},
		rejected: map[dataplane.ServiceName]string{},
		reduced:  map[dataplane.ServiceName]string{},
		tries:    map[dataplane.ServiceName]int{},
		parts:    map[dataplane.ServiceName]int{},

		asked:      map[v1alpha1.ProxyMode]int{},
		unfinished: map[dataplane.ServiceName]struct{}{},
		lacks:      map[v1alpha1.ProxyMode]error{},
		needsFull:  true,
		changes:    make(chan struct{}, 1),
		external:   make(chan dataplane.Change, 1),
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
		case c := <-f.external:
			changed(c)
		}
	}
}

// Supported implements dataplane.Dataplane.
func (f *Fake) Supported(_ context.Context, r *dataplane.Ruleset) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[r.Mode]++
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
	for name := range f.rejected {
		names[name] = struct{}{}
	}
	for name := range names {
		if _, rests := r.Rest[name]; rests && f.rejected[name] != "" && r.Services[name] != nil {
			continue
		}
		if _, preserve := r.Preserve[name]; preserve && r.Services[name] != nil && f.kernel[name] != nil {
			continue // the kernel's may be newer
		}
		if f.parts[name] > 1 && r.Pause != nil && r.Pause() {
			f.parts[name]--
			f.unfinished[name] = struct{}{}
			continue
		}
		delete(f.unfinished, name)
		if f.write(name, r.Services[name]) {
			result.ServicesChanged++
			f.writes++
		}
	}
	result.Rejected, result.Reduced = maps.Clone(f.rejected), map[dataplane.ServiceName]*dataplane.Service{}
	for name, reason := range f.reduced {
		if svc := r.Services[name]; svc != nil {
			result.Rejected[name], result.Reduced[name] = reason, svc
		}
	}
	result.Unfinished = maps.Clone(f.unfinished)
	result.Warnings = slices.Clone(f.warnings)
	result.Counts = f.count()
	return result, nil
}

// write writes svc to the kernel and reports whether that changed it.
func (f *Fake) write(name dataplane.ServiceName, svc *dataplane.Service) bool {
	delete(f.rejected, name)
	f.tries[name]++
	actual, found := f.kernel[name]
	if svc == nil {
		delete(f.kernel, name)
		return found
	}
	if reason := f.rejects[name]; reason != "" {
		f.rejected[name] = reason
		return false
	}
	f.kernel[name] = svc
	return actual != svc
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
		if _, preserve := r.Preserve[name]; preserve && f.kernel[name] != nil {
			continue
		}
		if _, unfinished := f.unfinished[name]; unfinished {
			continue // it is as the last Apply has left it
		}
		if f.kernel[name] != svc && f.rejected[name] == "" {
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
		if actual := f.kernel[name]; actual != svc {
			text := fmt.Sprintf("Service %s differs", name)
			a.Findings = append(a.Findings, dataplane.Finding{Service: name, Key: fmt.Sprintf("%s %p %p", name, actual, svc), Text: text})
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

// Relinquish implements dataplane.Dataplane: another proxy takes over everything.
func (*Fake) Relinquish(context.Context, bool) (string, error) { return "", nil }

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

// CleanupMode implements dataplane.ModeCleaner.
func (f *Fake) CleanupMode(context.Context, *dataplane.Ruleset) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stays != nil || f.draining != "" {
		return f.draining, f.stays
	}
	clear(f.kernel)
	f.needsFull = true
	return "", nil
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

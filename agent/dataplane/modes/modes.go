package modes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/pause"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Plane is the data plane of one mode in one IP family.
type Plane struct {
	dataplane.Declaration
	dataplane.ModeCleaner
}

// Dataplane is the data plane of all modes of one IP family. The first Apply takes over the
// kernel from any mode, because it is unknown which one ran before.
//
// A mode that starts reads and compares the whole kernel. Only after it has succeeded, and if the
// Ruleset allows removals, the other modes are cleaned up: until then connections depend on
// them. Packets meet one mode before another; see Declaration.Precedence. A change to a mode
// with precedence is complete with its Apply. A change to another one is complete once those
// that precede it are removed, so if that fails, Apply fails. Otherwise a failed removal is a
// warning.
//
// If a new mode cannot be applied, the previous one continues: it gets each Ruleset meanwhile, so
// that Services do not become stale, and takes back what both modes use. Apply returns the error
// nevertheless. After a restart there is no previous mode; the kernel stays as it is, apart from
// what the new mode has written.
//
// If a mode rejects a Service, a previous mode of lower precedence serves it for up to
// rejectedStay: it is not cleaned up earlier. It is not retained for longer, because its rules
// of all other Services are no longer updated. After a restart there is no such delay: it is
// unknown whether we have served the Service in that mode. The rules may be a kube-proxy's, and
// a permanently rejected Service would retain them forever. If the new mode has the lower
// precedence, a rejected Service is not served any more, like a new one, because the rules of
// all other Services would have to stay with its own and become stale.
type Dataplane struct {
	// Clock times the cleanup of other modes.
	Clock clock.WithTicker

	planes []Plane // by precedence
	// applied is the mode of the last successful Apply; empty: none, or another program may
	// have written since.
	applied v1alpha1.ProxyMode
	// due are the modes of which something may be left in the kernel.
	due map[v1alpha1.ProxyMode]struct{}
	// rejectedSince is since when a mode stays for rejected Services.
	rejectedSince map[v1alpha1.ProxyMode]time.Time
	// found is the mode that the last call of Supported found supported; empty: none, or something
	// else was done since.
	found v1alpha1.ProxyMode
	// again is woken up when a check is due after cleanupPause.
	again pause.Wake

	mu sync.Mutex // guards everything below
	// runs is the mode whose changes are followed; empty: none. Changed is closed when it
	// changes.
	runs    v1alpha1.ProxyMode
	changed chan struct{}
	// used are the modes of which we may have something in the kernel.
	used map[v1alpha1.ProxyMode]bool
}

var (
	_ dataplane.Dataplane = (*Dataplane)(nil)
	_ dataplane.Observer  = (*Dataplane)(nil)
)

// Close closes the sockets of all modes. Another process owns their tables only after that, or once this
// process has ended.
func (d *Dataplane) Close() error {
	var errs []error
	for _, p := range d.planes {
		if c, ok := p.ModeCleaner.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// New joins one data plane for each mode.
func New(planes ...Plane) *Dataplane {
	return &Dataplane{
		Clock:         clock.RealClock{},
		planes:        slices.SortedFunc(slices.Values(planes), func(a, b Plane) int { return cmp.Compare(a.Precedence, b.Precedence) }),
		due:           map[v1alpha1.ProxyMode]struct{}{},
		rejectedSince: map[v1alpha1.ProxyMode]time.Time{},
		again:         pause.NewWake(),
		changed:       make(chan struct{}),
		used:          map[v1alpha1.ProxyMode]bool{},
	}
}

// Supported implements dataplane.Dataplane. It notes a supported mode, so that a full Apply right
// after it does not check again.
func (d *Dataplane) Supported(ctx context.Context, r *dataplane.Ruleset) error {
	d.found = ""
	plane, err := d.plane(r.Mode)
	if err == nil {
		err = plane.Supported(ctx, r)
	}
	if err == nil {
		d.found = r.Mode
	}
	return err
}

func (d *Dataplane) plane(mode v1alpha1.ProxyMode) (*Plane, error) {
	for i := range d.planes {
		if d.planes[i].Mode == mode {
			return &d.planes[i], nil
		}
	}
	return nil, fmt.Errorf("%w: mode %q", dataplane.ErrUnsupported, mode)
}

// Uses reports whether this data plane may have something of a mode in the kernel. It is safe
// for concurrent use.
func (d *Dataplane) Uses(mode v1alpha1.ProxyMode) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used[mode]
}

// ownsLink reports whether a network link may belong to a mode that this data plane uses.
func (d *Dataplane) ownsLink(name string) bool {
	return slices.ContainsFunc(d.planes, func(p Plane) bool { return p.OwnsLink(name) && d.Uses(p.Mode) })
}

// Apply implements dataplane.Dataplane.
func (d *Dataplane) Apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	plane, err := d.plane(r.Mode)
	if err != nil {
		return dataplane.Result{}, err
	}
	previous := d.applied
	if previous != r.Mode {
		whole := *r
		whole.Full = true
		r = &whole
	}
	result, err := d.applyMode(ctx, plane, r)
	if err != nil {
		return dataplane.Result{}, d.resume(ctx, previous, plane, r, err)
	}
	if result.Kind == v1alpha1.SyncFull { // another program may have added something of other modes
		for _, p := range d.planes {
			d.due[p.Mode] = struct{}{}
		}
	}
	delete(d.due, r.Mode)
	if err := d.cleanupOthers(ctx, plane, r, &result); err != nil {
		return dataplane.Result{}, d.resume(ctx, previous, plane, r, err)
	}
	d.applied = r.Mode
	for _, p := range d.planes {
		_, left := d.due[p.Mode]
		result.OwnFlows = result.OwnFlows || p.OwnFlows && (left || p.Mode == r.Mode)
	}
	return result, nil
}

func (d *Dataplane) applyMode(ctx context.Context, plane *Plane, r *dataplane.Ruleset) (dataplane.Result, error) {
	found := d.found == plane.Mode
	d.found = ""
	if r.Full && !found {
		if err := plane.Supported(ctx, r); err != nil {
			return dataplane.Result{}, err
		}
	}
	d.use(plane.Mode, true)
	d.follow(plane.Mode) // earlier than Apply, so that nothing is missed
	return plane.Apply(ctx, r)
}

// resume applies r by the previous mode, if there is another one, because the new one failed, and
// returns why.
func (d *Dataplane) resume(ctx context.Context, previous v1alpha1.ProxyMode, failed *Plane, r *dataplane.Ruleset, why error) error {
	if previous == failed.Mode || previous == "" {
		return why
	}
	plane, err := d.plane(previous)
	if err != nil {
		return err
	}
	why = fmt.Errorf("mode %s cannot be applied, mode %s continues: %w", r.Mode, previous, why)
	old := *r // full, because the new mode may have changed what both use
	old.Mode = previous
	if _, err := d.applyMode(ctx, plane, &old); err != nil {
		return errors.Join(why, fmt.Errorf("mode %s: %w", previous, err))
	}
	if failed.Precedes(&plane.Declaration) && r.Prune {
		// Packets would meet its rules first, which are not updated.
		if _, err := failed.CleanupMode(ctx, &old); err != nil {
			return errors.Join(why, fmt.Errorf("clean up mode %s: %w", r.Mode, err))
		}
	}
	return why
}

// Verify implements dataplane.Dataplane. After an audit the actual state is unknown.
func (d *Dataplane) Verify(ctx context.Context, r *dataplane.Ruleset, o dataplane.VerifyOptions) (dataplane.Difference, error) {
	plane, err := d.plane(r.Mode)
	if err != nil {
		return dataplane.Difference{}, err
	}
	d.found = ""
	if o.Audit {
		d.applied = ""
		d.follow(r.Mode)
	}
	return plane.Verify(ctx, r, o)
}

func (d *Dataplane) use(mode v1alpha1.ProxyMode, used bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.used[mode] = used
}

// follow selects the mode whose changes are followed from now on; empty: none.
func (d *Dataplane) follow(mode v1alpha1.ProxyMode) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if mode == d.runs {
		return
	}
	d.runs = mode
	close(d.changed)
	d.changed = make(chan struct{})
}

// running returns the plane that runs, nil for none, and a channel that is closed when another
// one does.
func (d *Dataplane) running() (dataplane.Dataplane, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	plane, err := d.plane(d.runs)
	if err != nil {
		return nil, d.changed
	}
	return plane.ModeCleaner, d.changed
}

// Follow implements dataplane.Observer: by the mode that runs, and while something of another
// one is left.
func (d *Dataplane) Follow(ctx context.Context, changed func()) {
	var wg sync.WaitGroup
	wg.Go(func() { d.checkAgain(ctx, changed) })
	d.whileRunning(ctx, func(ctx context.Context, plane dataplane.Observer) { plane.Follow(ctx, changed) })
	wg.Wait()
}

// Watch implements dataplane.Observer: by the mode that runs.
func (d *Dataplane) Watch(ctx context.Context, changed func(dataplane.Change)) {
	d.whileRunning(ctx, func(ctx context.Context, plane dataplane.Observer) { plane.Watch(ctx, changed) })
}

// whileRunning calls do with the plane that runs, one after the other, until ctx is done. The
// context of do ends when another plane runs.
func (d *Dataplane) whileRunning(ctx context.Context, do func(context.Context, dataplane.Observer)) {
	for ctx.Err() == nil {
		plane, replaced := d.running()
		within, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		if observer, ok := plane.(dataplane.Observer); ok {
			wg.Go(func() { do(within, observer) })
		}
		select {
		case <-ctx.Done():
		case <-replaced:
		}
		cancel()
		wg.Wait()
	}
}

// checkAgain calls changed cleanupPause after each Apply that has left something of another mode
// in the kernel.
func (d *Dataplane) checkAgain(ctx context.Context, changed func()) {
	for ctx.Err() == nil {
		d.again.For(ctx, d.Clock, pause.Forever)
		if pause.For(ctx, d.Clock, cleanupPause) {
			changed()
		}
	}
}

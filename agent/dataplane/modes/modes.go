// Package modes lists the modes that there are, and joins their data planes to one for each IP
// family, which runs the mode that a Ruleset asks for and then cleans up what served the others.
//
//   - declared.go: which modes there are, and what they fall back to
//   - host_linux.go: the data planes of a node; model.go: those of a model of a node
//   - modes.go: runs one mode; cleanup.go: cleans up the others; follow.go: follows changes
package modes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Plane is the data plane of one mode in one IP family.
type Plane struct {
	dataplane.Declaration
	dataplane.Retirer
}

// Dataplane is the data plane of all modes of one IP family. Which of them ran
// before it was made is not known: the first Apply takes the kernel over from
// any of them.
//
// A mode that begins to run reads and compares the whole kernel. What serves only the others is
// removed after that has succeeded, and only where the Ruleset allows removals: until then
// connections have something to go by. Packets meet one mode before the other; see
// Declaration.Precedence. A change to a mode with precedence is complete with its Apply. A
// change to another one is complete once those that precede it are removed, so if that fails
// Apply fails, too. Otherwise a failed removal is a warning.
//
// Where a new mode cannot be applied, the one that ran goes on: it gets each
// Ruleset meanwhile, so that Services do not become stale behind a failure, and
// takes back what both modes use. Apply returns the error all the same. After a
// restart there is no mode that ran; the kernel stays as it is then, but for
// what the new mode has written.
//
// A Service that a mode rejects is served by what a mode that comes after it has in the kernel, for up to
// rejectedStay: that mode is not retired before. It is after that, because its rules of all
// other Services would have to stay, too, and are no longer updated. After a restart there is no such delay:
// it is not known then whether we have ever served that Service in that mode. What is
// there may be left of a kube-proxy, and a Service that is rejected for good would
// keep it there for good. A Service that is rejected by a mode that comes later is not served any more, like
// one that has just been made: the rules of all others would have to stay with its
// own, and become stale.
type Dataplane struct {
	// Clock times the cleanup of other modes.
	Clock clock.WithTicker

	planes []Plane // by precedence
	// applied is the mode that the last successful Apply was for; empty: none, or
	// another program may have written since.
	applied v1alpha1.ProxyMode
	// due are the modes of which something may be left in the kernel.
	due map[v1alpha1.ProxyMode]struct{}
	// rejectedSince is since when a mode stays for Services that are rejected.
	rejectedSince map[v1alpha1.ProxyMode]time.Time
	// asked is the mode that the node was found to support, by a call of Supported that
	// no Apply has followed.
	asked v1alpha1.ProxyMode
	// again holds one while something is to be checked after retirePause.
	again chan struct{}

	mu sync.Mutex // guards everything below
	// runs is the mode whose changes are followed; empty: none. Changed is closed
	// when it changes.
	runs    v1alpha1.ProxyMode
	changed chan struct{}
	// used are the modes of which the kernel may have something that we wrote.
	used map[v1alpha1.ProxyMode]bool
}

var (
	_ dataplane.Dataplane = (*Dataplane)(nil)
	_ dataplane.Observer  = (*Dataplane)(nil)
)

// New joins one data plane for each mode.
func New(planes ...Plane) *Dataplane {
	return &Dataplane{
		Clock:         clock.RealClock{},
		planes:        slices.SortedFunc(slices.Values(planes), func(a, b Plane) int { return cmp.Compare(a.Precedence, b.Precedence) }),
		due:           map[v1alpha1.ProxyMode]struct{}{},
		rejectedSince: map[v1alpha1.ProxyMode]time.Time{},
		again:         make(chan struct{}, 1),
		changed:       make(chan struct{}),
		used:          map[v1alpha1.ProxyMode]bool{},
	}
}

// Supported implements dataplane.Dataplane. The Apply that follows does not ask again.
func (d *Dataplane) Supported(ctx context.Context, r *dataplane.Ruleset) error {
	d.asked = ""
	plane, err := d.plane(r.Mode)
	if err == nil {
		err = plane.Supported(ctx, r)
	}
	if err == nil {
		d.asked = r.Mode
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

// Uses reports whether the kernel may have something of a mode that this data
// plane has written. It may be called from any goroutine.
func (d *Dataplane) Uses(mode v1alpha1.ProxyMode) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used[mode]
}

// ownsLink reports whether a network link may be of a mode that this data plane uses.
func (d *Dataplane) ownsLink(name string) bool {
	return slices.ContainsFunc(d.planes, func(p Plane) bool { return p.OwnsLink(name) && d.Uses(p.Mode) })
}

// Apply implements dataplane.Dataplane.
func (d *Dataplane) Apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	plane, err := d.plane(r.Mode)
	if err != nil {
		return dataplane.Result{}, err
	}
	former := d.applied
	if former != r.Mode {
		whole := *r
		whole.Full = true
		r = &whole
	}
	result, err := d.applyMode(ctx, plane, r)
	if err != nil {
		return dataplane.Result{}, d.goOn(ctx, former, plane, r, err)
	}
	if r.Full { // another program may have put other modes' things there
		for _, p := range d.planes {
			d.due[p.Mode] = struct{}{}
		}
	}
	delete(d.due, r.Mode)
	if err := d.retire(ctx, plane, r, &result); err != nil {
		return dataplane.Result{}, d.goOn(ctx, former, plane, r, err)
	}
	d.applied = r.Mode
	for _, p := range d.planes {
		_, left := d.due[p.Mode]
		result.OwnFlows = result.OwnFlows || p.OwnFlows && (left || p.Mode == r.Mode)
	}
	return result, nil
}

func (d *Dataplane) applyMode(ctx context.Context, plane *Plane, r *dataplane.Ruleset) (dataplane.Result, error) {
	asked := d.asked == plane.Mode
	d.asked = ""
	if r.Full && !asked {
		if err := plane.Supported(ctx, r); err != nil {
			return dataplane.Result{}, err
		}
	}
	d.use(plane.Mode, true)
	d.follow(plane.Mode) // before, so that nothing is missed
	return plane.Apply(ctx, r)
}

// goOn applies r by the mode that ran, if there is another one, because the new one could not be,
// and returns why.
func (d *Dataplane) goOn(ctx context.Context, former v1alpha1.ProxyMode, failed *Plane, r *dataplane.Ruleset, why error) error {
	if former == failed.Mode || former == "" {
		return why
	}
	plane, err := d.plane(former)
	if err != nil {
		return err
	}
	why = fmt.Errorf("mode %s cannot be applied, mode %s goes on: %w", r.Mode, former, why)
	old := *r // full, since the new mode may have changed what both use
	old.Mode = former
	if _, err := d.applyMode(ctx, plane, &old); err != nil {
		return errors.Join(why, fmt.Errorf("mode %s: %w", former, err))
	}
	if failed.Precedes(&plane.Declaration) && r.Prune {
		// Packets meet what has been written of it first, and it is not updated.
		if _, err := failed.Retire(ctx, &old); err != nil {
			return errors.Join(why, fmt.Errorf("removing what was written of mode %s: %w", r.Mode, err))
		}
	}
	return why
}

// Verify implements dataplane.Dataplane. With an audit it is not known from then on what the
// kernel has.
func (d *Dataplane) Verify(ctx context.Context, r *dataplane.Ruleset, o dataplane.VerifyOptions) (dataplane.Difference, error) {
	plane, err := d.plane(r.Mode)
	if err != nil {
		return dataplane.Difference{}, err
	}
	d.asked = ""
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

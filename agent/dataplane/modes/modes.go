// Package modes joins the modes of one IP family to one data plane, which runs
// the mode that a Ruleset asks for and then removes what served the others.
package modes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// retirePause is the time between looks at what is left of another mode.
const retirePause = 10 * time.Second

// Dataplane is the data plane of all modes of one IP family. Which of them ran
// before it was made is not known: the first Apply takes the kernel over from
// any of them.
//
// A mode that begins to run reads and compares all of the kernel. What serves
// the others alone is removed only after that has succeeded, and only where the
// Ruleset allows to remove anything: till then connections have something to go
// by. Packets come to the rules of mode IPTables before they come to virtual
// servers. So a change to IPTables is complete with the Apply of its rules, and one
// to IPVS with the removal of those: that it fails is an error of Apply then, and
// else a warning.
//
// Where a new mode cannot be applied, the one that ran goes on: it gets each
// Ruleset meanwhile, so that Services do not grow old behind a failure, and
// takes back what both modes use. Apply returns the error all the same. After a
// restart there is no mode that ran; the kernel stays as it is then, but for
// what the new mode has written.
//
// A Service that mode IPTables refuses is served by its virtual servers for up to
// refusedStay, since IPVS is not retired before. It is after that, because the
// virtual servers of all others stay with its own and are not kept up to date.
// After a restart that is over, too: it is not known then whether IPVS has ever served that Service. What is
// there may be left of a kube-proxy, and a Service that is refused for good would
// keep it there for good. One that mode IPVS refuses is not served any more, like
// one that has just been made: the rules of all others would have to stay with its
// own, and grow old.
type Dataplane struct {
	// Clock times the looks at what is left of another mode.
	Clock clock.WithTicker

	planes map[v1alpha1.ProxyMode]dataplane.Dataplane
	// applied is the mode that the last successful Apply was for; empty: none, or
	// somebody else may have written since.
	applied v1alpha1.ProxyMode
	// due are the modes of which something may be left in the kernel.
	due map[v1alpha1.ProxyMode]struct{}
	// refusedSince is since when mode IPVS stays for Services that are refused; zero:
	// it does not.
	refusedSince time.Time
	// again holds one while something is to be looked at after retirePause.
	again chan struct{}

	mu sync.Mutex // guards everything below
	// runs is the mode whose changes are followed; empty: none. Changed is closed
	// when it changes.
	runs    v1alpha1.ProxyMode
	changed chan struct{}
	// used are the modes of which the kernel may hold something that we wrote.
	used map[v1alpha1.ProxyMode]bool
}

var (
	_ dataplane.Dataplane = (*Dataplane)(nil)
	_ dataplane.Chooser   = (*Dataplane)(nil)
	_ dataplane.Follower  = (*Dataplane)(nil)
	_ dataplane.Watcher   = (*Dataplane)(nil)
	_ dataplane.Auditor   = (*Dataplane)(nil)
	_ dataplane.Excluder  = (*Dataplane)(nil)
)

// New joins one data plane for each mode.
func New(planes map[v1alpha1.ProxyMode]dataplane.Dataplane) *Dataplane {
	return &Dataplane{
		Clock:   clock.RealClock{},
		planes:  planes,
		due:     map[v1alpha1.ProxyMode]struct{}{},
		again:   make(chan struct{}, 1),
		changed: make(chan struct{}),
		used:    map[v1alpha1.ProxyMode]bool{},
	}
}

// Supported implements dataplane.Dataplane. What the modes need differs, and
// there is nothing that all do: see SupportsMode.
func (d *Dataplane) Supported(context.Context, *dataplane.Node) error { return nil }

// SupportsMode implements dataplane.Chooser.
func (d *Dataplane) SupportsMode(ctx context.Context, mode v1alpha1.ProxyMode, n *dataplane.Node) error {
	plane, err := d.plane(mode)
	if err != nil {
		return err
	}
	return plane.Supported(ctx, n)
}

func (d *Dataplane) plane(mode v1alpha1.ProxyMode) (dataplane.Dataplane, error) {
	if plane, found := d.planes[mode]; found {
		return plane, nil
	}
	return nil, fmt.Errorf("%w: mode %q", dataplane.ErrUnsupported, mode)
}

// Uses reports whether the kernel may hold something of a mode that this data
// plane has written. It may be called from any goroutine.
func (d *Dataplane) Uses(mode v1alpha1.ProxyMode) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used[mode]
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
		if former != r.Mode && former != "" {
			err = d.goOn(ctx, former, r, err)
		}
		return dataplane.Result{}, err
	}
	if r.Full { // somebody else may have put other modes' things there
		for mode := range d.planes {
			d.due[mode] = struct{}{}
		}
	}
	delete(d.due, r.Mode)
	if err := d.retire(ctx, r, &result); err != nil {
		if former != r.Mode && former != "" {
			err = d.goOn(ctx, former, r, err)
		}
		return dataplane.Result{}, err
	}
	d.applied, result.Lingering = r.Mode, len(d.due) > 0
	return result, nil
}

func (d *Dataplane) applyMode(ctx context.Context, plane dataplane.Dataplane, r *dataplane.Ruleset) (dataplane.Result, error) {
	if r.Full {
		if err := plane.Supported(ctx, &r.Node); err != nil {
			return dataplane.Result{}, err
		}
	}
	d.use(r.Mode, true)
	d.follow(r.Mode) // before, so that nothing is missed
	return plane.Apply(ctx, r)
}

// goOn applies r by the mode that ran, because another one could not be, and
// returns why.
func (d *Dataplane) goOn(ctx context.Context, former v1alpha1.ProxyMode, r *dataplane.Ruleset, why error) error {
	why = fmt.Errorf("mode %s cannot be applied, mode %s goes on: %w", r.Mode, former, why)
	old := *r // full, since the new mode may have changed what both use
	old.Mode = former
	if _, err := d.applyMode(ctx, d.planes[former], &old); err != nil {
		return errors.Join(why, fmt.Errorf("mode %s: %w", former, err))
	}
	if r.Mode == v1alpha1.ModeIPTables && r.Prune {
		// What has been written of it comes first, and nobody keeps it up to date.
		if _, err := d.retireMode(ctx, r.Mode, &old); err != nil {
			return errors.Join(why, fmt.Errorf("removing what was written of mode %s: %w", r.Mode, err))
		}
	}
	return why
}

// retire removes what is left of modes that do not run, as far as that may be,
// and tells in result what is not. With an error the mode of r has no effect yet.
func (d *Dataplane) retire(ctx context.Context, r *dataplane.Ruleset, result *dataplane.Result) error {
	if !r.Prune { // the next Apply that may remove something is full
		return nil
	}
	var pending []string
	again := false
	for _, mode := range slices.Sorted(maps.Keys(d.due)) {
		// Not after a restart: see Dataplane.
		if mode == v1alpha1.ModeIPVS && d.staysForRefused(result) {
			pending = append(pending, fmt.Sprintf("what serves mode %s stays for %s at most, for Services that mode %s refuses", mode, refusedStay, r.Mode))
			continue
		}
		why, err := d.retireMode(ctx, mode, r)
		switch {
		case err != nil && mode == v1alpha1.ModeIPTables:
			return fmt.Errorf("the rules of mode %s, which come first, could not be removed: %w", mode, err)
		case err != nil:
			again = true
			if len(result.Warnings) < dataplane.MaxExamples {
				result.Warnings = append(result.Warnings, fmt.Sprintf("what served mode %s could not be removed: %v; trying again every %s", mode, err, retirePause))
			}
		case why != "":
			again = true
			pending = append(pending, fmt.Sprintf("what served mode %s goes later: %s", mode, why))
		default:
			delete(d.due, mode)
			d.use(mode, false)
		}
	}
	result.Retiring = strings.Join(pending, "; ")
	if again {
		select {
		case d.again <- struct{}{}:
		default: // it is looked at anyway
		}
	}
	return nil
}

// refusedStay is for how long mode IPVS is not retired because mode IPTables refuses
// Services: as long as it may stay for connections.
const refusedStay = 15 * time.Minute

// staysForRefused reports whether mode IPVS stays for Services that are refused.
func (d *Dataplane) staysForRefused(result *dataplane.Result) bool {
	if !d.Uses(v1alpha1.ModeIPVS) || len(result.Refused) == 0 {
		d.refusedSince = time.Time{}
		return false
	}
	now := d.Clock.Now()
	if d.refusedSince.IsZero() {
		d.refusedSince = now
	}
	return now.Sub(d.refusedSince) < refusedStay
}

func (d *Dataplane) retireMode(ctx context.Context, mode v1alpha1.ProxyMode, r *dataplane.Ruleset) (string, error) {
	retirer, ok := d.planes[mode].(dataplane.Retirer)
	if !ok {
		return "", nil
	}
	return retirer.Retire(ctx, r)
}

// Verify implements dataplane.Dataplane.
func (d *Dataplane) Verify(ctx context.Context, r *dataplane.Ruleset) (dataplane.Difference, error) {
	plane, err := d.plane(r.Mode)
	if err != nil {
		return dataplane.Difference{}, err
	}
	return plane.Verify(ctx, r)
}

// Audit implements dataplane.Auditor: by the mode that an Apply would run.
func (d *Dataplane) Audit(ctx context.Context, r *dataplane.Ruleset) (dataplane.Audit, error) {
	plane, err := d.plane(r.Mode)
	if err != nil {
		return dataplane.Audit{}, err
	}
	auditor, ok := plane.(dataplane.Auditor)
	if !ok {
		return dataplane.Audit{}, fmt.Errorf("%w: enforcement Audit in mode %s", dataplane.ErrUnsupported, r.Mode)
	}
	d.applied = ""
	d.follow(r.Mode)
	return auditor.Audit(ctx, r)
}

// Exclude implements dataplane.Excluder, for all modes.
func (d *Dataplane) Exclude(cidrs []string) error {
	for _, plane := range d.planes {
		if excluder, ok := plane.(dataplane.Excluder); ok {
			if err := excluder.Exclude(cidrs); err != nil {
				return err
			}
		}
	}
	return nil
}

// Cleanup implements dataplane.Dataplane, for all modes. A mode of which the node
// can have nothing returns no error. Every mode needs iptables: the error wraps
// dataplane.ErrUnsupported only if all that has failed is that it is missing.
func (d *Dataplane) Cleanup(ctx context.Context) error {
	d.applied = ""
	clear(d.due)
	d.follow("")
	var errs []error
	var absent error
	for _, mode := range slices.Sorted(maps.Keys(d.planes)) {
		err := d.planes[mode].Cleanup(ctx)
		switch {
		case err == nil:
			d.use(mode, false)
		case mode == v1alpha1.ModeIPTables && errors.Is(err, dataplane.ErrUnsupported):
			absent = err
		default:
			errs = append(errs, fmt.Errorf("mode %s: %w", mode, err))
		}
	}
	failed := errors.Join(errs...)
	switch {
	case absent != nil && (failed == nil || errors.Is(failed, dataplane.ErrUnsupported)):
		return errors.Join(absent, failed)
	case absent != nil: // it must not hide the others
		return fmt.Errorf("%v\n%w", absent, failed) //nolint:errorlint // see above
	case errors.Is(failed, dataplane.ErrUnsupported):
		return errors.New(failed.Error())
	}
	return failed
}

func (d *Dataplane) use(mode v1alpha1.ProxyMode, used bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.used[mode] = used
}

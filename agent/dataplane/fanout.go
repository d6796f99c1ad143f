package dataplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Fanout joins the implementations of several IP families. Families run at
// the same time, and the failure of one does not stop another.
type Fanout struct {
	// Clock tells how long calls take. Nil: that is not told.
	Clock    clock.PassiveClock
	byFamily map[Family]Dataplane
}

// NewFanout joins one implementation for each family.
func NewFanout(byFamily map[Family]Dataplane) *Fanout {
	return &Fanout{byFamily: byFamily}
}

// Families lists the families that are joined, in order.
func (f *Fanout) Families() []Family {
	families := make([]Family, 0, len(f.byFamily))
	for family := range f.byFamily {
		families = append(families, family)
	}
	slices.Sort(families)
	return families
}

// Outcome is how a call went for one family.
type Outcome[T any] struct {
	Value T
	Err   error
	// Took is how long the call took.
	Took time.Duration
}

// Apply makes each family that has a Ruleset hold it. A family whose node
// lacks something reports that and is not applied.
func (f *Fanout) Apply(ctx context.Context, rulesets map[Family]*Ruleset) map[Family]Outcome[Result] {
	return each(f, rulesets, func(d Dataplane, r *Ruleset) (Result, error) {
		if r.Full {
			if err := d.Supported(ctx, &r.Node); err != nil {
				return Result{}, err
			}
		}
		return d.Apply(ctx, r)
	})
}

// SupportsMode tells of each family that has a Ruleset whether the node can run
// a mode; see Chooser. A data plane that has no modes can run any.
func (f *Fanout) SupportsMode(ctx context.Context, mode v1alpha1.ProxyMode, rulesets map[Family]*Ruleset) map[Family]error {
	errs := make(map[Family]error, len(rulesets))
	for family, outcome := range each(f, rulesets, func(d Dataplane, r *Ruleset) (struct{}, error) {
		if chooser, ok := d.(Chooser); ok {
			return struct{}{}, chooser.SupportsMode(ctx, mode, &r.Node)
		}
		return struct{}{}, nil
	}) {
		errs[family] = outcome.Err
	}
	return errs
}

// Verify compares the kernel to each family's Ruleset.
func (f *Fanout) Verify(ctx context.Context, rulesets map[Family]*Ruleset) map[Family]Outcome[Difference] {
	return each(f, rulesets, func(d Dataplane, r *Ruleset) (Difference, error) {
		return d.Verify(ctx, r)
	})
}

// Cleanup removes what is ours from the kernel, for every family that the node
// has. That it has none at all is an error.
func (f *Fanout) Cleanup(ctx context.Context) error {
	var errs, absent []error
	for _, family := range f.Families() {
		err := f.byFamily[family].Cleanup(ctx)
		switch {
		case err == nil:
		case errors.Is(err, ErrUnsupported):
			absent = append(absent, fmt.Errorf("%s: %w", family, err))
		default:
			errs = append(errs, fmt.Errorf("%s: %w", family, err))
		}
	}
	if len(absent) == len(f.byFamily) {
		errs = append(errs, absent...)
	}
	return errors.Join(errs...)
}

// Exclude tells all families what spec.settings.ipvs.excludeCIDRs names; see
// Excluder.
func (f *Fanout) Exclude(cidrs []string) error {
	for _, family := range f.Families() {
		if excluder, ok := f.byFamily[family].(Excluder); ok {
			if err := excluder.Exclude(cidrs); err != nil {
				return err
			}
		}
	}
	return nil
}

// Follow calls changed whenever facts of the node that a family's rules depend
// on have changed by themselves, until ctx is done; see Follower.
func (f *Fanout) Follow(ctx context.Context, changed func(Family)) {
	var wg sync.WaitGroup
	for family, d := range f.byFamily {
		if follower, ok := d.(Follower); ok {
			wg.Go(func() { follower.Follow(ctx, func() { changed(family) }) })
		}
	}
	wg.Wait()
}

// JoinErrors joins the errors of all families, each with its family's name.
// It returns nil when there are none.
func JoinErrors[T any](outcomes map[Family]Outcome[T]) error {
	var errs []error
	for _, family := range []Family{IPv4, IPv6} {
		if err := outcomes[family].Err; err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", family, err))
		}
	}
	return errors.Join(errs...)
}

func (f *Fanout) now() time.Time {
	if f.Clock == nil {
		return time.Time{}
	}
	return f.Clock.Now()
}

// each calls do for every family at the same time and waits for all of them.
func each[T any](f *Fanout, rulesets map[Family]*Ruleset, do func(Dataplane, *Ruleset) (T, error)) map[Family]Outcome[T] {
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex // guards outcomes
		outcomes = make(map[Family]Outcome[T], len(rulesets))
	)
	for family, ruleset := range rulesets {
		wg.Go(func() {
			var out Outcome[T]
			start := f.now()
			if d, found := f.byFamily[family]; found {
				out.Value, out.Err = do(d, ruleset)
			} else {
				out.Err = fmt.Errorf("no data plane for this family: %w", ErrUnsupported)
			}
			out.Took = f.now().Sub(start)
			mu.Lock()
			defer mu.Unlock()
			outcomes[family] = out
		})
	}
	wg.Wait()
	return outcomes
}

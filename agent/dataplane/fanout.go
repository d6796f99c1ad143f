package dataplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Fanout joins the data planes of several IP families. They run concurrently, and a failure of
// one does not stop another.
type Fanout struct {
	// Clock measures how long calls take. Nil: they are not measured.
	Clock    clock.PassiveClock
	byFamily map[Family]Dataplane
}

// NewFanout joins one data plane for each family.
func NewFanout[D Dataplane](byFamily map[Family]D) *Fanout {
	f := &Fanout{byFamily: map[Family]Dataplane{}}
	for family, plane := range byFamily {
		f.byFamily[family] = plane
	}
	return f
}

// Families returns the joined families, sorted.
func (f *Fanout) Families() []Family { return slices.Sorted(maps.Keys(f.byFamily)) }

// Outcome is the outcome of a call for one family.
type Outcome[T any] struct {
	Value T
	Err   error
	Took  time.Duration
}

// Supported checks for each family that has a Ruleset whether the node can run its mode.
func (f *Fanout) Supported(ctx context.Context, rulesets map[Family]*Ruleset) map[Family]error {
	errs := make(map[Family]error, len(rulesets))
	for family, outcome := range each(f, rulesets, func(d Dataplane, r *Ruleset) (struct{}, error) {
		return struct{}{}, d.Supported(ctx, r)
	}) {
		errs[family] = outcome.Err
	}
	return errs
}

// Apply programs each family that has a Ruleset.
func (f *Fanout) Apply(ctx context.Context, rulesets map[Family]*Ruleset) map[Family]Outcome[Result] {
	return each(f, rulesets, func(d Dataplane, r *Ruleset) (Result, error) { return d.Apply(ctx, r) })
}

// Verify compares the kernel to each family's Ruleset.
func (f *Fanout) Verify(ctx context.Context, rulesets map[Family]*Ruleset, o VerifyOptions) map[Family]Outcome[Difference] {
	return each(f, rulesets, func(d Dataplane, r *Ruleset) (Difference, error) { return d.Verify(ctx, r, o) })
}

// Cleanup removes what is ours from the kernel, for every family that the node has. It is an
// error if it has none.
func (f *Fanout) Cleanup(ctx context.Context, o CleanupOptions) error {
	var errs, unsupported []error
	for _, family := range f.Families() {
		err := f.byFamily[family].Cleanup(ctx, o)
		switch {
		case err == nil:
		case errors.Is(err, ErrUnsupported):
			unsupported = append(unsupported, fmt.Errorf("%s: %w", family, err))
		default:
			errs = append(errs, fmt.Errorf("%s: %w", family, err))
		}
	}
	if len(unsupported) == len(f.byFamily) {
		errs = append(errs, unsupported...)
	}
	return errors.Join(errs...)
}

// Relinquish has each family remove the rules that another proxy does not take over, if that proxy
// serves the family. The values are what remains.
func (f *Fanout) Relinquish(ctx context.Context, serves map[Family]bool) map[Family]Outcome[string] {
	outcomes := map[Family]Outcome[string]{}
	for _, family := range f.Families() {
		remain, err := f.byFamily[family].Relinquish(ctx, serves[family])
		outcomes[family] = Outcome[string]{Value: remain, Err: err}
	}
	return outcomes
}

// Follow calls changed whenever facts of the node no longer fit a family's rules, until ctx
// is done; see Observer.
func (f *Fanout) Follow(ctx context.Context, changed func(Family)) {
	f.observe(func(family Family, o Observer) { o.Follow(ctx, func() { changed(family) }) })
}

// Watch calls changed whenever another program may have changed a family's rules, until ctx is
// done; see Observer.
func (f *Fanout) Watch(ctx context.Context, changed func(Family, Change)) {
	f.observe(func(family Family, o Observer) { o.Watch(ctx, func(c Change) { changed(family, c) }) })
}

// observe runs do concurrently for all observers and waits.
func (f *Fanout) observe(do func(Family, Observer)) {
	var wg sync.WaitGroup
	for family, d := range f.byFamily {
		if o, ok := d.(Observer); ok {
			wg.Go(func() { do(family, o) })
		}
	}
	wg.Wait()
}

// JoinErrors joins the errors of all families, each with its family's name.
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

// each calls do concurrently for every family and waits.
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

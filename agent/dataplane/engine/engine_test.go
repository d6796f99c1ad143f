package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testclock "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// plane notes what an engine has it do.
type plane struct {
	engine    *Engine[string]
	known     bool
	effect    Effect
	did       []string
	fail      error // of the next Change
	rejected  map[dataplane.ServiceName]Rejection[string]
	large     map[dataplane.ServiceName]bool
	conflicts map[dataplane.ServiceName]Conflict
	leaves    map[dataplane.ServiceName]struct{}
}

func (p *plane) Open(context.Context) error { return nil }
func (p *plane) Known() bool                { return p.known }

func (p *plane) Recheck(context.Context, *dataplane.Ruleset) (Effect, error) {
	p.did = append(p.did, "recheck")
	return p.effect, nil
}

func (p *plane) Change(_ context.Context, _ *dataplane.Ruleset, names []dataplane.ServiceName, all bool) (int, error) {
	p.did = append(p.did, fmt.Sprint("change ", names, " ", all))
	err := p.fail
	p.fail = nil
	if slices.ContainsFunc(names, func(n dataplane.ServiceName) bool { _, leaves := p.leaves[n]; return leaves }) {
		done := map[dataplane.ServiceName]struct{}{}
		for _, n := range names {
			if _, leaves := p.leaves[n]; !leaves {
				done[n] = struct{}{}
			}
		}
		p.engine.Leave(names, done, nil)
	}
	return len(names), err
}

func (p *plane) Full(_ context.Context, r *dataplane.Ruleset, asked bool) (FullPass, error) {
	p.did = append(p.did, fmt.Sprint("full ", asked))
	p.known, p.engine.Rejected, p.engine.Preserved = true, p.rejected, PreservedOf(r)
	return FullPass{Changed: 100}, nil
}

func (p *plane) Large(name dataplane.ServiceName, _ *dataplane.Service) bool { return p.large[name] }

func (p *plane) Conflicts() iter.Seq2[dataplane.ServiceName, Conflict] { return maps.All(p.conflicts) }

func (p *plane) Report(_ *dataplane.Ruleset, result *dataplane.Result) {
	result.Warnings = slices.Repeat([]string{"warning"}, 2*dataplane.MaxExamples)
}

func named(names ...string) []dataplane.ServiceName {
	var out []dataplane.ServiceName
	for _, n := range names {
		namespace, name, _ := strings.Cut(n, "/")
		out = append(out, dataplane.ServiceName{Namespace: namespace, Name: name})
	}
	return out
}

func set(names ...string) map[dataplane.ServiceName]struct{} {
	out := map[dataplane.ServiceName]struct{}{}
	for _, n := range named(names...) {
		out[n] = struct{}{}
	}
	return out
}

func desired(names ...string) map[dataplane.ServiceName]*dataplane.Service {
	out := map[dataplane.ServiceName]*dataplane.Service{}
	for _, n := range named(names...) {
		out[n] = &dataplane.Service{Name: n}
	}
	return out
}

func TestApply(t *testing.T) {
	clk := testclock.NewFakePassiveClock(time.Unix(0, 0))
	p := &plane{}
	p.engine = New[string](p, clk)
	all := desired("a/1", "a/2", "b/1")
	apply := func(when string, r dataplane.Ruleset, want ...string) dataplane.Result {
		t.Helper()
		p.did = nil
		r.Services = all
		result, err := p.engine.Apply(t.Context(), &r)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if diff := cmp.Diff(want, p.did); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
		return result
	}
	result := apply("nothing is known", dataplane.Ruleset{Dirty: set("a/1")}, "full true")
	if result.Kind != v1alpha1.SyncFull || result.ServicesChanged != 100 || len(result.Warnings) != dataplane.MaxExamples {
		t.Errorf("a full pass: %+v", result)
	}
	if result = apply("one has changed", dataplane.Ruleset{Dirty: set("a/1")}, "change [a/1] false"); result.Kind != v1alpha1.SyncPartial || result.ServicesChanged != 1 {
		t.Errorf("a partial pass: %+v", result)
	}
	apply("nothing has", dataplane.Ruleset{})
	apply("asked for", dataplane.Ruleset{Full: true}, "full true")

	p.effect = AllServices
	apply("facts of all Services", dataplane.Ruleset{Recheck: true}, "recheck", "change [a/1 a/2 b/1] true")
	p.effect = TakesFull
	apply("facts that take a full pass", dataplane.Ruleset{Recheck: true, Dirty: set("a/1")}, "recheck", "full true")

	p.fail = fmt.Errorf("%w: line 3", ErrFull)
	if result = apply("in doubt", dataplane.Ruleset{Dirty: set("a/1")}, "change [a/1] false", "full false"); result.ServicesChanged != 101 {
		t.Errorf("after a doubt: %+v", result)
	}
	locked := errors.New("locked")
	p.fail = locked
	if _, err := p.engine.Apply(t.Context(), &dataplane.Ruleset{Services: all, Dirty: set("a/1")}); !errors.Is(err, locked) {
		t.Errorf("an error that reports nothing about the kernel: %v", err)
	}

	p.large = map[dataplane.ServiceName]bool{named("a/1")[0]: true}
	apply("a large one", dataplane.Ruleset{Dirty: set("a/1", "b/1")}, "change [b/1] false", "change [a/1 b/1] false")
	p.large = nil

	apply("preserved ones are not known", dataplane.Ruleset{Full: true, Preserve: set("a/1", "gone/1")}, "full true")
	apply("so they take a full pass", dataplane.Ruleset{Dirty: set("a/1", "b/1")}, "change [b/1] false", "full false")
}

// TestRepair: what another program has changed is repaired first. A full pass follows if that is not enough.
func TestRepair(t *testing.T) {
	p := &plane{known: true}
	p.engine = New[string](p, testclock.NewFakePassiveClock(time.Unix(0, 0)))
	r := dataplane.Ruleset{Services: desired("a/1", "a/2"), Dirty: set("a/1"), Full: true, Repair: true}
	for name, c := range map[string]struct {
		repairs, repaired, known bool
		want                     []string
		kind                     v1alpha1.SyncKind
		changed                  int
	}{
		"repaired":              {true, true, true, []string{"repair", "change [a/1] false"}, v1alpha1.SyncPartial, 8},
		"not repaired":          {true, false, true, []string{"repair", "full true"}, v1alpha1.SyncFull, 107},
		"nothing is known":      {true, true, false, []string{"full true"}, v1alpha1.SyncFull, 100},
		"a mode without repair": {false, false, true, []string{"full true"}, v1alpha1.SyncFull, 100},
	} {
		p.did, p.known, p.engine.Repair = nil, c.known, nil
		if c.repairs {
			p.engine.Repair = func(context.Context, *dataplane.Ruleset) (FullPass, bool) {
				p.did = append(p.did, "repair")
				return FullPass{Changed: 7, Repaired: dataplane.Difference{Count: 3}}, c.repaired
			}
		}
		result, err := p.engine.Apply(t.Context(), &r)
		if err != nil || !slices.Equal(p.did, c.want) || result.Kind != c.kind || result.ServicesChanged != c.changed || (result.Repaired.Count == 3) != (c.want[0] == "repair") {
			t.Errorf("%s: %q, %+v, %v", name, p.did, result, err)
		}
	}
}

// TestUnfinishedServices are reported until they are written, or a full pass is made.
func TestUnfinishedServices(t *testing.T) {
	p := &plane{known: true}
	p.engine = New[string](p, testclock.NewFakePassiveClock(time.Unix(0, 0)))
	apply := func(full bool, dirty map[dataplane.ServiceName]struct{}, want ...string) {
		t.Helper()
		result, err := p.engine.Apply(t.Context(), &dataplane.Ruleset{Services: desired("a/1", "a/2", "b/1"), Full: full, Dirty: dirty})
		if diff := cmp.Diff(set(want...), result.Unfinished); err != nil || diff != "" {
			t.Errorf("%v, unfinished (-want +got):\n%s", err, diff)
		}
	}
	p.leaves = set("a/1")
	apply(false, set("a/1", "b/1"), "a/1")
	apply(false, set("b/1"), "a/1")
	p.large = map[dataplane.ServiceName]bool{named("a/2")[0]: true}
	apply(false, set("a/1", "a/2"), "a/1", "a/2")
	p.leaves = nil
	apply(false, set("a/1"), "a/2")
	apply(true, nil)
}

func TestRejectedServices(t *testing.T) {
	clk := testclock.NewFakePassiveClock(time.Unix(0, 0))
	held := "old"
	p := &plane{
		rejected: map[dataplane.ServiceName]Rejection[string]{
			named("a/1")[0]: {Reason: "bad", Proven: true, Actual: &held}, named("a/2")[0]: {Reason: "unsure", Unknown: true},
		},
		conflicts: map[dataplane.ServiceName]Conflict{named("b/1")[0]: {Reason: "another's", Served: &dataplane.Service{}}},
	}
	p.engine = New[string](p, clk)
	r := &dataplane.Ruleset{Services: desired("a/1", "a/2", "b/1", "c/1"), Full: true}
	result, err := p.engine.Apply(t.Context(), r)
	want := map[dataplane.ServiceName]string{named("a/1")[0]: "bad", named("a/2")[0]: "unsure", named("b/1")[0]: "another's"}
	if diff := cmp.Diff(want, result.Rejected); err != nil || diff != "" || len(result.Reduced) != 1 {
		t.Errorf("%v, reduced %v, rejected (-want +got):\n%s", err, result.Reduced, diff)
	}
	if diff := cmp.Diff(set("a/2"), result.Suspected); diff != "" {
		t.Errorf("suspected (-want +got):\n%s", diff)
	}
	next := func(when string, rest map[dataplane.ServiceName]struct{}, want ...string) {
		t.Helper()
		p.did = nil
		if _, err := p.engine.Apply(t.Context(), &dataplane.Ruleset{Services: r.Services, Dirty: set("c/1"), Rest: rest}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, p.did); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	next("all rest", set("a/1", "a/2", "b/1"), "change [c/1] false")
	next("known ones are tried", set("a/2"), "change [a/1 b/1 c/1] false")
	next("one that is not known", set("a/1", "b/1"), "change [c/1] false", "full false")
	next("a namespace has one full pass at a time", set("a/1", "b/1"), "change [c/1] false")
	clk.SetTime(clk.Now().Add(retryPause))
	next("and another one later", set("a/1", "b/1"), "change [c/1] false", "full false")
}

func TestNoneTaken(t *testing.T) {
	proven := Rejection[string]{Reason: "bad", Proven: true}
	of := func(r Rejection[string], names ...string) map[dataplane.ServiceName]Rejection[string] {
		out := map[dataplane.ServiceName]Rejection[string]{}
		for _, n := range named(names...) {
			out[n] = r
		}
		return out
	}
	for name, c := range map[string]struct {
		n        int
		rejected map[dataplane.ServiceName]Rejection[string]
		want     bool
	}{
		"some":          {3, of(proven, "a/1", "b/1"), false},
		"one namespace": {2, of(proven, "a/1", "a/2"), false},
		"not proven":    {2, of(Rejection[string]{}, "a/1", "b/1"), false},
		"all":           {2, of(proven, "a/1", "b/1"), true},
	} {
		if err := NoneTaken(c.n, c.rejected); (err != nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestIsolation(t *testing.T) {
	bad, other := named("a/3")[0], named("b/2")[0]
	rejects := errors.New("rejected")
	for _, names := range []bool{false, true} { // the kernel names those at fault
		var batches [][]dataplane.ServiceName
		p := &Isolation[string]{
			Limit: 20, RetryLimit: 5, Capacity: 100, LargeSize: 50, Size: func(dataplane.ServiceName) int { return 1 },
			Rejection: func(err error) bool { return errors.Is(err, rejects) },
			Suspects: func(batch []dataplane.ServiceName, _ error) (suspects, rest []dataplane.ServiceName) {
				for _, n := range batch {
					if names && (n == bad || n == other) {
						suspects = append(suspects, n)
					} else {
						rest = append(rest, n)
					}
				}
				return suspects, rest
			},
			Rejected: map[dataplane.ServiceName]Rejection[string]{}, Changed: map[dataplane.ServiceName]struct{}{},
		}
		err := p.Write(named("a/1", "a/2", "a/3", "a/4", "b/1", "b/2"), func(batch []dataplane.ServiceName) error {
			batches = append(batches, batch)
			if slices.Contains(batch, bad) || slices.Contains(batch, other) {
				return rejects
			}
			return nil
		})
		if err != nil || len(p.Rejected) != 2 || !p.Rejected[bad].Proven || !p.Rejected[other].Proven || len(p.Changed) != 4 {
			t.Errorf("%v, rejected %v, written %v", err, p.Rejected, p.Changed)
		}
		if most := map[bool]int{false: 11, true: 9}[names]; len(batches) > most {
			t.Errorf("%d runs: %v", len(batches), batches)
		}
		busy := errors.New("busy")
		if err := p.Write(named("a/1"), func([]dataplane.ServiceName) error { return busy }); !errors.Is(err, busy) {
			t.Errorf("an error that is no rejection: %v", err)
		}
	}
}

func TestAddresses(t *testing.T) {
	ip := netip.MustParseAddr
	now := []netip.Addr{ip("192.0.2.1"), ip("10.0.0.1")}
	read := func() ([]netip.Addr, error) { return now, nil }
	inRange := func(list []netip.Addr) []netip.Addr {
		return slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return a.Less(ip("192.0.2.0")) })
	}
	var a Addresses
	if a.Changed(read) {
		t.Error("something has changed before anything was noted")
	}
	a.Note(inRange(now), inRange)
	now = append(now, ip("10.0.0.2"))
	if a.Changed(read) {
		t.Error("an address that does not matter")
	}
	now = append(now, ip("192.0.2.2"))
	if !a.Changed(read) {
		t.Error("an address that matters")
	}
	if a.Changed(func() ([]netip.Addr, error) { return nil, errors.New("no") }) {
		t.Error("addresses that cannot be read")
	}
	svc := desired("a/1")
	if NodePortWarning(dataplane.IPv4, dataplane.NodePorts{}, svc) != "" {
		t.Error("a warning without a node port")
	}
	svc[named("a/1")[0]].Ports = []dataplane.Port{{NodePort: 30000}}
	if NodePortWarning(dataplane.IPv4, dataplane.NodePorts{}, svc) == "" {
		t.Error("no warning with a node port")
	}
}

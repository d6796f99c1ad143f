package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// fakeTable is a table in memory.
type fakeTable struct {
	mu      sync.Mutex
	flows   map[string]Flow
	walks   int
	filters []Filter // of the last Walk
	took    time.Duration
	// failure of Walk, after it has visited visits flows; stuck flows cannot be
	// deleted; deaf interfaces report no addresses.
	failure error
	visits  int
	stuck   string
	deaf    error
	more    []netip.Addr // of the interfaces
}

func newFakeTable(flows ...Flow) *fakeTable {
	t := &fakeTable{flows: map[string]Flow{}}
	t.add(flows...)
	return t
}

func (t *fakeTable) add(flows ...Flow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range flows {
		f.Source = netip.AddrPortFrom(f.Source.Addr(), uint16(1000+len(t.flows)))
		t.flows[f.Destination.String()+">"+f.ReplySource.String()] = f
	}
}

func (t *fakeTable) set(edit func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	edit()
}

func (t *fakeTable) Walk(_ context.Context, family dataplane.Family, protocol v1alpha1.Protocol, filters []Filter, visit func(Flow)) error {
	t.mu.Lock()
	t.walks++
	t.filters = slices.Clone(filters)
	var matching []Flow
	for _, name := range t.names() {
		f := t.flows[name]
		if family.Of(f.Source.Addr()) && f.Protocol == protocol && slices.ContainsFunc(filters, func(filter Filter) bool { return filter.matches(f) }) {
			matching = append(matching, f)
		}
	}
	failure := t.failure
	if failure != nil {
		matching = matching[:min(t.visits, len(matching))]
	}
	took := t.took
	t.mu.Unlock()
	time.Sleep(took)
	for _, f := range matching {
		visit(f)
	}
	return failure
}

func (t *fakeTable) Delete(f Flow) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name := f.Destination.String() + ">" + f.ReplySource.String()
	if t.stuck == name {
		return false, errors.New("busy")
	}
	_, found := t.flows[name]
	delete(t.flows, name)
	return found, nil
}

func (t *fakeTable) LocalAddresses(family dataplane.Family) ([]netip.Addr, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append(t.more, addressesOf[family]...), t.deaf
}

// names lists the flows. The caller holds mu.
func (t *fakeTable) names() []string {
	var names []string
	for name := range t.flows {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (t *fakeTable) expect(tt *testing.T, want ...string) {
	tt.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	if diff := cmp.Diff(want, t.names()); diff != "" {
		tt.Errorf("flows (-want +got):\n%s", diff)
	}
}

func (t *fakeTable) expectWalks(tt *testing.T, want int) {
	tt.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.walks != want {
		tt.Errorf("the table was read %d times, want %d", t.walks, want)
	}
}

const (
	clusterIP = "172.30.0.41:80"
	a, b      = "10.180.0.1:8080", "10.180.0.2:8080"
	toA, toB  = clusterIP + ">" + a, clusterIP + ">" + b
)

func serving(endpoints string) *dataplane.Service {
	text := "ip 172.30.0.41 port 80"
	for e := range strings.FieldsSeq(endpoints) {
		text += " ep " + e
	}
	return service("s", text)
}

// running starts a cleaner in a bubble, whose clock is the bubble's, and calls
// test once it has nothing to do.
func running(t *testing.T, table *fakeTable, test func(c *Cleaner, passes func() []Pass), edit ...func(*Options)) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var made []Pass
		passes := func() []Pass {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(made)
		}
		options := Options{Family: dataplane.IPv4, Protocol: v1alpha1.ProtocolUDP, Table: table, Clock: clock.RealClock{},
			May: func() bool { return true },
			Report: func(_ dataplane.Family, p Pass) {
				mu.Lock()
				defer mu.Unlock()
				made = append(made, p)
			}}
		for _, e := range edit {
			e(&options)
		}
		c := New(options)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); c.Run(ctx) }()
		synctest.Wait()
		test(c, passes)
		cancel()
		<-done
	})
}

func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestNothingBeforeACommit(t *testing.T) {
	table := newFakeTable(flow(clusterIP, b))
	running(t, table, func(c *Cleaner, passes func() []Pass) {
		after(time.Hour)
		table.expectWalks(t, 0)
		c.Committed(ruleset(true, list{serving(a)}, "s"), dataplane.Result{})
		after(0) // at once
		table.expect(t)
		if p := passes(); len(p) != 1 || p[0].Removed[EndpointGone] != 1 || p[0].Read != 1 || p[0].Err != nil {
			t.Errorf("passes %+v", p)
		}
		after(time.Hour)
		table.expectWalks(t, 1)
	})
}

// While rules are applied the kernel may have them already, and clients new flows by them.
func TestFlowsOfRulesThatAreBeingApplied(t *testing.T) {
	for name, c := range map[string]struct {
		applied string // the endpoints of the Apply during which flows are read
		full    bool
		want    []string
	}{
		"an endpoint that comes back": {a + " " + b, false, []string{toA, toB}},
		"the same in full":            {a + " " + b, true, []string{toA, toB}},
		"an endpoint that stays away": {a, false, []string{toA}},
	} {
		t.Run(name, func(t *testing.T) {
			table := newFakeTable(flow(clusterIP, a), flow(clusterIP, b))
			running(t, table, func(cleaner *Cleaner, _ func() []Pass) {
				cleaner.Committed(ruleset(true, list{serving(a + " " + b)}, "s"), dataplane.Result{})
				after(time.Minute)
				table.set(func() { table.took = 2 * time.Second })
				cleaner.Committed(ruleset(false, list{serving(a)}, "s"), dataplane.Result{})
				after(time.Second) // flows are being read
				next := ruleset(c.full, list{serving(c.applied)}, "s")
				cleaner.Applying(next)
				after(time.Minute)
				table.expect(t, toA, toB)
				table.expectWalks(t, 2) // no other one before the Apply ends
				cleaner.Committed(next, dataplane.Result{})
				after(time.Minute)
				table.expect(t, c.want...)
			})
		})
	}
}

func TestOnlyChangesOfUDPLeadToAPass(t *testing.T) {
	table := newFakeTable()
	running(t, table, func(c *Cleaner, _ func() []Pass) {
		web := func(ep string) *dataplane.Service { return service("web", "ip 172.30.0.80 port 80 tcp ep "+ep) }
		c.Committed(ruleset(true, list{serving(a), web(a)}), dataplane.Result{})
		after(time.Minute)
		c.Committed(ruleset(false, list{serving(a), web(b)}, "web"), dataplane.Result{})
		again := serving(a)
		again.AffinitySeconds = 60
		c.Committed(ruleset(false, list{again, web(b)}, "s"), dataplane.Result{})
		c.Committed(ruleset(false, list{again, web(b)}), dataplane.Result{})
		after(time.Minute)
		table.expectWalks(t, 1)
		c.Committed(ruleset(false, list{serving(b), web(b)}, "s"), dataplane.Result{})
		after(time.Minute)
		table.expectWalks(t, 2)
		if want := []Filter{{netip.MustParseAddr("172.30.0.41"), 80}}; !slices.Equal(table.filters, want) {
			t.Errorf("read with filters %v, want %v", table.filters, want)
		}
		// A data plane that was full unasked found other rules than it thought.
		c.Committed(ruleset(false, list{serving(b), web(b)}), dataplane.Result{Kind: "Full"})
		after(time.Minute)
		table.expectWalks(t, 3)
		if want := []Filter{{}}; !slices.Equal(table.filters, want) {
			t.Errorf("read with filters %v, want %v", table.filters, want)
		}
	})
}

func TestNodePortsOnANewAddress(t *testing.T) {
	table := newFakeTable(flow("192.0.2.99:3001", "192.0.2.99:3001"))
	running(t, table, func(c *Cleaner, _ func() []Pass) {
		services := list{service("s", "ip 172.30.0.41 port 80 np 3001 ep "+a)}
		c.Committed(ruleset(true, services), dataplane.Result{})
		after(time.Minute)
		table.expect(t, "192.0.2.99:3001>192.0.2.99:3001")
		table.set(func() { table.more = []netip.Addr{netip.MustParseAddr("192.0.2.99")} })
		r := ruleset(false, services)
		r.Recheck = true
		c.Committed(r, dataplane.Result{})
		after(time.Minute)
		table.expect(t)
	})
}

// TestFlowsOutsideNATGoWithIt: they go on while IPVS is waited for, and are removed when it
// has gone, though nothing else has changed.
func TestFlowsOutsideNATGoWithIt(t *testing.T) {
	byIPVS := flow(clusterIP, a)
	byIPVS.OutsideNAT = true
	table := newFakeTable(byIPVS)
	running(t, table, func(c *Cleaner, _ func() []Pass) {
		c.Committed(ruleset(true, list{serving(a)}), dataplane.Result{OwnFlows: true})
		after(time.Hour)
		table.expect(t, toA)
		c.Committed(ruleset(false, list{serving(a)}), dataplane.Result{OwnFlows: true})
		after(time.Hour)
		table.expect(t, toA)
		c.Committed(ruleset(false, list{serving(a)}), dataplane.Result{})
		after(time.Minute)
		table.expect(t)
	})
}

func TestManyChangesLeadToFewPasses(t *testing.T) {
	table := newFakeTable()
	running(t, table, func(c *Cleaner, _ func() []Pass) {
		for i := range 100 { // ten a second
			c.Committed(ruleset(false, list{serving([]string{a, b}[i%2])}, "s"), dataplane.Result{})
			after(100 * time.Millisecond)
		}
		after(time.Minute)
		table.expectWalks(t, 11)
		// A pass that takes long is made less often.
		table.set(func() { table.took, table.walks = 3*time.Second, 0 })
		for i := range 600 {
			c.Committed(ruleset(false, list{serving([]string{a, b}[i%2])}, "s"), dataplane.Result{})
			after(100 * time.Millisecond)
		}
		after(time.Minute)
		table.expectWalks(t, 5)
	})
}

// TestTCPIsReadLessOftenWhileNothingIsStale: a found connection is checked again soon.
func TestTCPIsReadLessOftenWhileNothingIsStale(t *testing.T) {
	table := newFakeTable()
	table.took = 4 * time.Millisecond // of which 500 are 2 s
	running(t, table, func(c *Cleaner, _ func() []Pass) {
		web := func(i int) *dataplane.Service {
			return service("s", "ip 172.30.0.41 port 80 tcp ep "+[]string{a, b}[i%2])
		}
		change := func(n int) {
			for i := range n { // ten a second
				c.Committed(ruleset(false, list{web(i)}, "s"), dataplane.Result{})
				after(100 * time.Millisecond)
			}
		}
		change(101)
		table.expectWalks(t, 6)
		table.set(func() { table.took, table.walks = time.Second/10, 0 })
		change(101)
		table.expectWalks(t, 2) // after 2 s, and 5 s later
		gone := flow(clusterIP, "10.180.0.9:8080")
		gone.Protocol = v1alpha1.ProtocolTCP
		table.add(gone)
		table.set(func() { table.walks = 0 })
		change(63)
		table.expectWalks(t, 3) // the second one removes it, the third finds nothing
		table.expect(t)
	}, func(o *Options) { o.Protocol = v1alpha1.ProtocolTCP })
}

func TestFailedPassIsMadeAgain(t *testing.T) {
	table := newFakeTable(flow(clusterIP, a), flow("192.0.2.21:3001", a), flow("10.1.1.1:53", a))
	var lines []string
	log := func(o *Options) {
		o.Log = funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	}
	running(t, table, func(c *Cleaner, passes func() []Pass) {
		c.Committed(ruleset(true, list{service("s", "ip 172.30.0.41 port 80 np 3001 ep "+a)}), dataplane.Result{})
		after(time.Minute)
		table.set(func() { table.failure, table.visits = errors.New("interrupted"), 1 })
		// The Service is gone for good: only the cleaner knows its addresses.
		c.Committed(ruleset(false, nil, "s"), dataplane.Result{})
		after(0)
		table.expect(t, "10.1.1.1:53>"+a, "192.0.2.21:3001>"+a) // what was seen
		after(200 * time.Millisecond)
		if n := len(passes()); n != 2 || passes()[1].Err == nil {
			t.Errorf("%d passes %+v", n, passes())
		}
		after(100 * time.Millisecond) // 250 ms after
		after(24 * time.Hour)
		if n := len(passes()); n < 24*60*2 || n > 24*60*2+20 {
			t.Errorf("%d passes in 24 h of failures", n)
		}
		table.set(func() { table.failure = nil })
		after(time.Minute)
		table.expect(t, "10.1.1.1:53>"+a)
		before := len(passes())
		after(time.Hour)
		if len(passes()) != before {
			t.Error("passes go on after a success")
		}
	}, log)
	if n := len(lines); n != 2 || !strings.Contains(lines[0], "interrupted") || !strings.Contains(lines[1], "works again") {
		t.Errorf("log: %q", lines)
	}
}

func TestFlowThatCannotBeRemovedIsTriedAgain(t *testing.T) {
	table := newFakeTable(flow(clusterIP, a), flow(clusterIP, b))
	table.stuck = toA
	running(t, table, func(c *Cleaner, passes func() []Pass) {
		c.Committed(ruleset(true, list{serving("")}), dataplane.Result{})
		after(0)
		table.expect(t, toA)
		if p := passes()[0]; p.Err == nil || !strings.Contains(p.Err.Error(), "busy") || p.Removed[NoEndpoint] != 1 {
			t.Errorf("pass %+v", p)
		}
		table.set(func() { table.stuck = "" })
		after(time.Minute)
		table.expect(t)
	})
}

func TestWithoutAddressesOfInterfaces(t *testing.T) {
	table := newFakeTable(flow("192.0.2.21:3001", b))
	table.deaf = errors.New("no buffer space")
	running(t, table, func(c *Cleaner, passes func() []Pass) {
		c.Committed(ruleset(true, list{service("s", "ip 172.30.0.41 port 80 np 3001 ep "+a)}), dataplane.Result{})
		after(0)
		if p := passes(); len(p) != 1 || p[0].Err == nil {
			t.Errorf("passes %+v", p)
		}
		table.set(func() { table.deaf = nil })
		after(time.Minute)
		table.expect(t)
	})
}

func TestNothingWhileItMayNot(t *testing.T) {
	table := newFakeTable(flow(clusterIP, b))
	var may bool
	running(t, table, func(c *Cleaner, _ func() []Pass) {
		c.Committed(ruleset(true, list{serving(a)}), dataplane.Result{})
		after(time.Hour)
		table.expectWalks(t, 0)
		table.set(func() { may = true })
		after(time.Minute)
		table.expect(t)
	}, func(o *Options) {
		o.May = func() bool { table.mu.Lock(); defer table.mu.Unlock(); return may }
	})
}

// TestNothingOnceItMayNotAnyMore: what is left of a pass is done when it may be.
func TestNothingOnceItMayNotAnyMore(t *testing.T) {
	table := newFakeTable(flow(clusterIP, a), flow(clusterIP, b))
	asked, limit := 0, 2 // before the pass, and for the first flow
	running(t, table, func(c *Cleaner, passes func() []Pass) {
		c.Committed(ruleset(true, list{serving("10.180.0.9:8080")}), dataplane.Result{})
		after(10 * time.Second)
		if p := passes(); len(p) != 1 || !errors.Is(p[0].Err, errMayNot) || p[0].Removed[EndpointGone] != 1 {
			t.Errorf("passes %+v", p)
		}
		table.expect(t, toB)
		table.set(func() { limit = 1000 })
		after(time.Minute)
		table.expect(t)
	}, func(o *Options) {
		o.May = func() bool { table.mu.Lock(); defer table.mu.Unlock(); asked++; return asked <= limit }
	})
}

// TestWhatHappensDuringAPassIsNotLost changes the rules while the table is
// read.
func TestWhatHappensDuringAPassIsNotLost(t *testing.T) {
	table := newFakeTable(flow(clusterIP, a))
	table.took = 10 * time.Second
	running(t, table, func(c *Cleaner, _ func() []Pass) {
		c.Committed(ruleset(true, list{serving(a)}), dataplane.Result{})
		after(time.Second)
		c.Committed(ruleset(false, nil, "s"), dataplane.Result{})
		after(10 * time.Second)
		table.expect(t, toA)
		after(time.Minute + 10*time.Second)
		table.expect(t)
		table.expectWalks(t, 2)
	})
}

func TestRejectedServiceIsCleanedOnceAccepted(t *testing.T) {
	table := newFakeTable(flow(clusterIP, a), flow(clusterIP, b))
	rejected := dataplane.Result{Rejected: map[dataplane.ServiceName]string{{Namespace: "shop", Name: "s"}: "line 3"}}
	running(t, table, func(c *Cleaner, _ func() []Pass) {
		c.Committed(ruleset(true, list{serving(a + " " + b)}), dataplane.Result{})
		after(time.Minute)
		next := list{serving(b)}
		c.Committed(ruleset(false, next, "s"), rejected)
		after(time.Minute)
		table.expect(t, toA, toB)
		c.Committed(ruleset(false, next), dataplane.Result{}) // not dirty any more
		after(time.Minute)
		table.expect(t, toB)
	})
}

func TestUnfinishedServiceIsCleanedAfterItsLastPart(t *testing.T) {
	table := newFakeTable(flow(clusterIP, a), flow(clusterIP, b))
	unfinished := dataplane.Result{Unfinished: map[dataplane.ServiceName]struct{}{{Namespace: "shop", Name: "s"}: {}}}
	running(t, table, func(c *Cleaner, _ func() []Pass) {
		c.Committed(ruleset(true, list{serving(a + " " + b)}), dataplane.Result{})
		after(time.Minute)
		next := list{serving(b)}
		c.Committed(ruleset(false, next, "s"), unfinished)
		after(time.Minute)
		c.Committed(ruleset(false, next), unfinished) // a small change
		after(time.Minute)
		table.expect(t, toA, toB)
		c.Committed(ruleset(false, next, "s"), dataplane.Result{})
		after(time.Minute)
		table.expect(t, toB)
	})
}

func TestFilters(t *testing.T) {
	other := service("o", "ip 172.30.0.50 port 53 ep "+a)
	many := service("m", "ip 172.30.0.60 ext 192.0.2.50 ext 192.0.2.51 lb 192.0.2.52 port 53 np 3003 ep "+a)
	one := func(address string, port uint16) Filter { return Filter{netip.MustParseAddr(address), port} }
	for name, tt := range map[string]struct {
		first, second list
		dirty         string
		want          []Filter
	}{
		"nothing":             {list{serving(a)}, list{serving(a)}, "s", nil},
		"an endpoint":         {list{serving(a), other}, list{serving(b), other}, "s", []Filter{one("172.30.0.41", 80)}},
		"one endpoint more":   {list{serving(a)}, list{serving(b + " " + a)}, "s", nil},
		"one endpoint less":   {list{serving(a + " " + b)}, list{serving(b)}, "s", []Filter{one("172.30.0.41", 80)}},
		"the first endpoint":  {list{serving("")}, list{serving(a)}, "s", []Filter{one("172.30.0.41", 80)}},
		"a Service has ended": {list{serving(a), other}, list{other}, "s", []Filter{one("172.30.0.41", 80)}},
		"a Service has come":  {list{other}, list{serving(a), other}, "s", []Filter{one("172.30.0.41", 80)}},
		"another address": {list{serving(a), other}, list{service("s", "ip 172.30.0.41 port 80 np 3001 ep "+a), other}, "s",
			[]Filter{one("172.30.0.41", 80), {Port: 3001}}},
		"two Services":   {list{serving(a), other}, list{serving(b)}, "s o", []Filter{one("172.30.0.41", 80), one("172.30.0.50", 53)}},
		"many addresses": {list{many}, nil, "m", []Filter{{}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newState(v1alpha1.ProtocolUDP)
			s.commit(ruleset(true, tt.first), dataplane.Result{})
			s.take()
			s.commit(ruleset(false, tt.second, strings.Fields(tt.dirty)...), dataplane.Result{})
			p := s.take()
			slices.SortFunc(p.filters, func(a, b Filter) int { return strings.Compare(fmt.Sprint(b), fmt.Sprint(a)) })
			slices.SortFunc(tt.want, func(a, b Filter) int { return strings.Compare(fmt.Sprint(b), fmt.Sprint(a)) })
			if !slices.Equal(p.filters, tt.want) {
				t.Errorf("got %v, want %v", p.filters, tt.want)
			}
		})
	}
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	s := newState(v1alpha1.ProtocolUDP)
	for i := range 2 * maxFormer {
		s.work.addFormer(Filter{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 53})
	}
	if got := len(s.work.former); got != maxFormer {
		t.Errorf("%d addresses are remembered", got)
	}
}

func TestRejectedServiceIsCleanedOnceReverted(t *testing.T) {
	table := newFakeTable(flow(clusterIP, b))
	rejected := dataplane.Result{Rejected: map[dataplane.ServiceName]string{{Namespace: "shop", Name: "s"}: "line 3"}}
	running(t, table, func(c *Cleaner, _ func() []Pass) {
		c.Committed(ruleset(true, list{serving(b)}), dataplane.Result{})
		after(0) // a pass; the pause after it keeps another from coming between the next two
		c.Committed(ruleset(false, list{serving(a)}, "s"), dataplane.Result{})
		c.Committed(ruleset(false, list{serving(b)}, "s"), rejected)
		after(time.Minute)
		table.expect(t, toB)
		c.Committed(ruleset(false, list{serving(a)}, "s"), dataplane.Result{})
		after(time.Minute)
		table.expect(t)
	})
}

func TestWorkThatFailedWaitsAgain(t *testing.T) {
	two := list{serving(a), service("o", "ip 172.30.0.50 port 53 ep "+a)}
	s := newState(v1alpha1.ProtocolUDP)
	s.commit(ruleset(true, two), dataplane.Result{})
	for range 2 {
		p := s.take()
		w := p.work
		if want := []Filter{{}}; !slices.Equal(p.filters, want) {
			t.Errorf("all: filters %v, want %v", p.filters, want)
		}
		s.putBack(w)
	}
	s.take()
	s.commit(ruleset(false, list{serving(b), two[1]}, "s"), dataplane.Result{})
	for range 2 {
		p := s.take()
		w := p.work
		if want := []Filter{{netip.MustParseAddr("172.30.0.41"), 80}}; !slices.Equal(p.filters, want) {
			t.Errorf("one Service: filters %v, want %v", p.filters, want)
		}
		s.putBack(w)
	}
	w := s.take().work
	s.commit(ruleset(false, list{serving(b)}, "o"), dataplane.Result{})
	s.putBack(w)
	if p := s.take(); len(p.filters) != 2 || len(p.former) != 1 {
		t.Errorf("what came meanwhile and what failed: filters %v, former %v", p.filters, p.former)
	}
}

// TestTCPIsRemovedAfterTwoPassesWithoutAnAnswer: untranslated connections at once, others if the next
// pass finds them without an answer too, and none of a Service that has ended.
func TestTCPIsRemovedAfterTwoPassesWithoutAnAnswer(t *testing.T) {
	tcp := func(destination, endpoint string) Flow {
		f := flow(destination, endpoint)
		f.Protocol = v1alpha1.ProtocolTCP
		return f
	}
	const c = "10.180.0.3:8080"
	table := newFakeTable(tcp(clusterIP, clusterIP), tcp(clusterIP, a), tcp(clusterIP, b), tcp(clusterIP, c))
	web := func(endpoint string) list { return list{service("s", "ip 172.30.0.41 port 80 tcp ep "+endpoint)} }
	running(t, table, func(cleaner *Cleaner, passes func() []Pass) {
		cleaner.Committed(ruleset(true, web(b)), dataplane.Result{})
		after(0)
		table.expect(t, toA, toB, clusterIP+">"+c)
		table.set(func() { delete(table.flows, clusterIP+">"+c) }) // it has been answered
		after(time.Second)
		table.expect(t, toB)
		table.add(tcp(clusterIP, c), tcp(clusterIP, a))
		table.set(func() { table.failure, table.visits = errors.New("interrupted"), 1 })
		cleaner.Committed(ruleset(false, web("10.180.0.4:8080"), "s"), dataplane.Result{})
		after(2 * time.Second)
		table.set(func() { table.failure = nil })
		after(time.Minute)
		table.expect(t)
		count := len(passes())
		after(time.Hour)
		if len(passes()) != count {
			t.Error("passes go on after a success")
		}
		table.add(tcp(clusterIP, "10.180.0.4:8080"))
		cleaner.Committed(ruleset(false, nil, "s"), dataplane.Result{})
		after(time.Minute)
		table.expect(t, clusterIP+">10.180.0.4:8080")
	}, func(o *Options) { o.Protocol = v1alpha1.ProtocolTCP })
}

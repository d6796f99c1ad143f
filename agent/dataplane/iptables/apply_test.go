package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// fixture drives a Dataplane on a model of the kernel.
type fixture struct {
	*testing.T
	kernel *fakeKernel
	plane  *Dataplane
	rules  *dataplane.Ruleset
}

func newFixture(t *testing.T) *fixture {
	sysctl := t.TempDir()
	if err := os.MkdirAll(filepath.Join(sysctl, "net/ipv4/conf/all"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, kernel: newFakeKernel()}
	f.rules = &dataplane.Ruleset{
		Node: testNode(), Services: map[dataplane.ServiceName]*dataplane.Service{},
		Dirty: map[dataplane.ServiceName]struct{}{}, Full: true, Prune: true,
	}
	f.plane = New(dataplane.IPv4, Options{Modes: twoModes(), SysctlDirectory: sysctl})
	f.plane.kernel = f.kernel
	return f
}

// restart stands for a new agent on the same kernel.
func (f *fixture) restart() {
	sysctl := f.plane.sysctl
	f.plane = New(dataplane.IPv4, Options{Modes: twoModes(), SysctlDirectory: sysctl})
	f.plane.kernel = f.kernel
	f.rules.Full = true
}

func (f *fixture) set(services ...*dataplane.Service) {
	for _, s := range services {
		f.rules.Services[s.Name] = s
		f.rules.Dirty[s.Name] = struct{}{}
	}
}

func (f *fixture) remove(name dataplane.ServiceName) {
	delete(f.rules.Services, name)
	f.rules.Dirty[name] = struct{}{}
}

func (f *fixture) apply() dataplane.Result {
	f.Helper()
	f.kernel.writes = nil
	result, err := f.plane.Apply(context.Background(), f.rules)
	if err != nil {
		f.Fatalf("apply: %v", err)
	}
	f.rules.Full = false
	clear(f.rules.Dirty)
	return result
}

// check compares the kernel to a fresh plan, counts included.
func (f *fixture) check(result dataplane.Result) {
	f.Helper()
	fresh := New(dataplane.IPv4, Options{Modes: twoModes(), SysctlDirectory: f.plane.sysctl})
	fresh.kernel, fresh.interfaceIPs = f.kernel, f.plane.interfaceIPs
	d, err := fresh.Verify(context.Background(), f.rules, dataplane.VerifyOptions{})
	if err != nil {
		f.Fatal(err)
	}
	if d.Count != 0 {
		f.Fatalf("the kernel differs from the plan: %s", strings.Join(d.Examples, "\n"))
	}
	if d.Counts[dataplane.Chains] != result.Counts[dataplane.Chains] || d.Counts[dataplane.Rules] != result.Counts[dataplane.Rules] {
		f.Fatalf("result counts %d chains, %d rules; the kernel has %d, %d", result.Counts[dataplane.Chains], result.Counts[dataplane.Rules], d.Counts[dataplane.Chains], d.Counts[dataplane.Rules])
	}
}

func someServices(n int) []*dataplane.Service {
	var out []*dataplane.Service
	for i := range n {
		out = append(out, testService(fmt.Sprintf("ns/svc%d", i), fmt.Sprintf("172.30.0.%d", i+1),
			dataplane.Port{Available: true, Cluster: endpoints(fmt.Sprintf("10.180.%d.1:80", i), fmt.Sprintf("10.180.%d.2:80", i))}))
	}
	return out
}

func TestFirstLoadThenRestartWritesNothing(t *testing.T) {
	f := newFixture(t)
	f.set(someServices(5)...)
	result := f.apply()
	if result.Kind != v1alpha1.SyncFull || result.ServicesChanged != 5 {
		t.Errorf("result %+v", result)
	}
	f.check(result)
	f.restart()
	result = f.apply()
	if len(f.kernel.writes) != 0 || result.ServicesChanged != 0 {
		t.Errorf("a restart wrote: %s", f.kernel.writes)
	}
	f.check(result)
}

func TestChangedEndpointRewritesItsOwnChainsOnly(t *testing.T) {
	f := newFixture(t)
	f.set(someServices(5)...)
	f.apply()
	svc := *f.rules.Services[dataplane.ServiceName{Namespace: "ns", Name: "svc3"}]
	svc.Ports = slices.Clone(svc.Ports)
	svc.Ports[0].Cluster = endpoints("10.180.3.1:80", "10.180.3.3:80")
	f.set(&svc)
	result := f.apply()
	if result.Kind != v1alpha1.SyncPartial || result.ServicesChanged != 1 || len(f.kernel.writes) != 1 {
		t.Fatalf("result %+v, writes %q", result, f.kernel.writes)
	}
	for line := range strings.SplitSeq(f.kernel.writes[0], "\n") {
		for _, shared := range []string{" KUBE-SERVICES", ":KUBE-SERVICES", "KUBE-NODEPORTS", "*filter"} {
			if strings.Contains(line, shared) {
				t.Errorf("a changed endpoint touches a shared chain: %s", line)
			}
		}
	}
	f.check(result)
}

func TestEndpointsComeAndGo(t *testing.T) {
	f := newFixture(t)
	empty := testService("ns/svc", "172.30.0.1", dataplane.Port{NodePort: 3000})
	f.set(empty)
	f.check(f.apply())
	full := testService("ns/svc", "172.30.0.1", dataplane.Port{NodePort: 3000, Available: true, Cluster: endpoints("10.180.0.1:80")})
	f.set(full)
	f.check(f.apply())
	if got := f.kernel.chain(t, filter, chainServices); len(got) != 0 {
		t.Errorf("the reject rule stays: %q", got)
	}
	// Translation comes before the rejection goes.
	if w := f.kernel.writes[0]; strings.Index(w, "*nat") > strings.Index(w, "*filter") {
		t.Errorf("the rejection goes first:\n%s", w)
	}
	f.set(empty)
	f.check(f.apply())
	if w := f.kernel.writes[0]; strings.Index(w, "*nat") < strings.Index(w, "*filter") {
		t.Errorf("the translation goes first:\n%s", w)
	}
	f.remove(empty.Name)
	f.check(f.apply())
}

// TestManyChangesEndWhereAFreshStartDoes makes random changes step by step and
// compares the kernel to a fresh plan after each.
func TestManyChangesEndWhereAFreshStartDoes(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		f := newFixture(t)
		for step := range 40 {
			for range 1 + rng.IntN(3) {
				if rng.IntN(4) == 0 && len(f.rules.Services) > 0 {
					names := slices.SortedFunc(maps.Keys(f.rules.Services), dataplane.ServiceName.Compare)
					f.remove(names[rng.IntN(len(names))])
				} else {
					f.set(randomService(rng))
				}
			}
			if rng.IntN(10) == 0 {
				f.restart()
			}
			result := f.apply()
			f.check(result)
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, step)
			}
		}
	}
}

func randomService(rng *rand.Rand) *dataplane.Service {
	i := rng.IntN(8)
	var port dataplane.Port
	for j := range rng.IntN(5) {
		ep := netip.MustParseAddrPort(fmt.Sprintf("10.180.%d.%d:80", i, 1+(j+rng.IntN(2))%6))
		if !slices.Contains(port.Cluster, ep) {
			port.Cluster = append(port.Cluster, ep)
		}
	}
	port.Available = len(port.Cluster) > 0
	if rng.IntN(2) == 0 {
		port.NodePort = uint16(30000 + i)
	}
	s := testService(fmt.Sprintf("ns/svc%d", i), fmt.Sprintf("172.30.0.%d", i+1), port)
	if rng.IntN(3) == 0 {
		s.LoadBalancerIPs = addrs(fmt.Sprintf("1.2.3.%d", i))
		if rng.IntN(2) == 0 {
			s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/25")}
		}
	}
	s.ExternalLocal, s.InternalLocal = rng.IntN(3) == 0, rng.IntN(4) == 0
	p := &s.Ports[0]
	if (s.ExternalLocal || s.InternalLocal) && len(p.Cluster) > 0 && rng.IntN(2) == 0 {
		p.Local = p.Cluster[:1]
	}
	if rng.IntN(4) == 0 {
		s.AffinitySeconds = int32(60 * (1 + rng.IntN(2)))
	}
	return s
}

func TestUntrustedListRemovesNothing(t *testing.T) {
	f := newFixture(t)
	f.set(someServices(3)...)
	f.apply()
	// A new agent that has received a part of the list only, one Service of it
	// changed.
	f.restart()
	f.rules.Prune = false
	changed := testService("ns/svc0", "172.30.0.1", dataplane.Port{})
	f.rules.Services = map[dataplane.ServiceName]*dataplane.Service{changed.Name: changed}
	f.apply()
	rules := f.kernel.chain(t, nat, chainServices)
	for i, want := range []bool{false, true, true} {
		if got := anyMatch(fmt.Sprintf("ns/svc%d:p80 cluster IP", i), rules); got != want {
			t.Errorf("svc%d has a rule: %t, want %t\n%s", i, got, want, strings.Join(rules, "\n"))
		}
	}
	if last := rules[len(rules)-1]; !strings.Contains(last, chainNodePorts) {
		t.Errorf("the last rule is %s", last)
	}
	f.rules.Full, f.rules.Prune = true, true
	f.check(f.apply())
}

func TestRejectedServiceIsIsolated(t *testing.T) {
	for _, c := range []struct{ name, reject string }{
		{"its endpoint", "-j DNAT --to-destination 10.180.7.2:80"},
		{"its cluster IP", "-I KUBE-SERVICES -m comment --comment \"ns/svc7:p80 cluster IP\""},
		{"its cluster IP, at the first load", "svc7:p80 cluster IP\" -m tcp -p tcp -d 172.30.0.8 --dport 80 -j"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			f.kernel.tables.Reject = func(line string) bool { return strings.Contains(line, c.reject) }
			f.set(someServices(20)...)
			result := f.apply()
			bad := dataplane.ServiceName{Namespace: "ns", Name: "svc7"}
			if c.name == "its cluster IP" {
				// The first load writes whole chains; insert it anew.
				if len(result.Rejected) != 0 {
					t.Fatalf("rejected %v", result.Rejected)
				}
				f.remove(bad)
				f.apply()
				f.set(someServices(8)[7])
				result = f.apply()
			}
			if len(result.Rejected) != 1 || !strings.Contains(result.Rejected[bad], "line rejected") {
				t.Fatalf("rejected: %v", result.Rejected)
			}
			rules := f.kernel.chain(t, nat, chainServices)
			if len(rules) != 19+1 {
				t.Errorf("%d rules in KUBE-SERVICES, want 20:\n%s", len(rules), strings.Join(rules, "\n"))
			}
			f.set(someServices(3)[2])
			if result = f.apply(); len(result.Rejected) != 1 {
				t.Errorf("a change of another Service forgets the rejected one: %v", result.Rejected)
			}
			f.kernel.tables.Reject = nil
			f.set(someServices(8)[7])
			if result = f.apply(); len(result.Rejected) != 0 {
				t.Errorf("still rejected: %v", result.Rejected)
			}
			f.check(result)
		})
	}
}

func TestRejectedChangeKeepsFormerRules(t *testing.T) {
	f := newFixture(t)
	f.set(someServices(3)...)
	f.apply()
	before := f.kernel.save()
	bad := testService("ns/svc1", "172.30.0.2", dataplane.Port{Available: true, Cluster: endpoints("10.180.9.9:80")})
	f.kernel.tables.Reject = func(line string) bool { return strings.Contains(line, "10.180.9.9") }
	f.set(bad)
	result := f.apply()
	if len(result.Rejected) != 1 {
		t.Fatalf("rejected %v", result.Rejected)
	}
	if diff := cmp.Diff(before, f.kernel.save()); diff != "" {
		t.Errorf("rules changed (-before +after):\n%s", diff)
	}
	f.kernel.tables.Reject = nil
	f.rules.Full = true
	f.check(f.apply())
}

func TestFlushedRulesAreWrittenAnewByAChange(t *testing.T) {
	f := newFixture(t)
	f.set(someServices(3)...)
	f.apply()
	for _, id := range f.kernel.chains() {
		if id.table == nat {
			f.kernel.set(t, id)
		}
	}
	f.remove(dataplane.ServiceName{Namespace: "ns", Name: "svc1"})
	result := f.apply()
	if result.Kind != v1alpha1.SyncFull || len(result.Rejected) != 0 {
		t.Errorf("result %+v", result)
	}
	f.check(result)
}

func TestFailureIsReportedAndTheNextApplyIsFull(t *testing.T) {
	f := newFixture(t)
	f.set(someServices(3)...)
	f.kernel.fail = &toolError{program: "iptables-restore", cause: locked, err: errors.New("exit status 4"), output: "busy"}
	_, err := f.plane.Apply(context.Background(), f.rules)
	if err == nil || !strings.Contains(err.Error(), "another process holds the xtables lock") {
		t.Fatalf("error %v", err)
	}
	f.check(f.apply())
	f.set(testService("ns/svc9", "172.30.0.99", dataplane.Port{}))
	f.kernel.fail = &toolError{program: "iptables-restore", cause: locked, err: errors.New("exit status 4")}
	if _, err := f.plane.Apply(context.Background(), f.rules); err == nil {
		t.Fatal("no error")
	}
	result, err := f.plane.Apply(context.Background(), f.rules)
	if err != nil || result.Kind != v1alpha1.SyncFull {
		t.Fatalf("after a failure: %+v, %v", result, err)
	}
	f.check(result)
}

func TestVerifyNamesDifferences(t *testing.T) {
	f := newFixture(t)
	f.set(someServices(2)...)
	f.apply()
	services := chainID{nat, chainServices}
	f.kernel.set(t, services, f.kernel.chain(t, nat, chainServices)[1:]...)
	f.kernel.set(t, chainID{nat, "KUBE-SVC-UNKNOWN"})
	f.kernel.set(t, chainID{filter, "FORWARD"})
	d, err := f.plane.Verify(context.Background(), f.rules, dataplane.VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"rule missing in KUBE-SERVICES of nat \\(Service ns/svc[01]\\)", "unexpected chain KUBE-SVC-UNKNOWN in nat", "jump missing in FORWARD of filter"} {
		if !anyMatch(want, d.Examples) {
			t.Errorf("nothing reports %q: %q", want, d.Examples)
		}
	}
	if d.Count != 1+1+4 {
		t.Errorf("count %d, examples %q", d.Count, d.Examples)
	}
}

func TestRulesOfOthersStay(t *testing.T) {
	f := newFixture(t)
	mine := []chainID{{nat, "POSTROUTING"}, {filter, "INPUT"}, {filter, chainFirewall}, {nat, "MY-CHAIN"}}
	for _, id := range mine {
		f.kernel.set(t, id, "-s 192.0.2.1/32 -j ACCEPT")
	}
	f.set(someServices(2)...)
	f.check(f.apply())
	if err := f.plane.Cleanup(context.Background(), dataplane.CleanupOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, id := range mine {
		if !slices.Contains(f.kernel.chain(t, id.table, id.name), "-s 192.0.2.1/32 -j ACCEPT") {
			t.Errorf("the rule in %s is gone", id.name)
		}
	}
	for _, id := range f.kernel.chains() {
		if declared.own.has(id) {
			t.Errorf("chain %s is left", id.name)
		}
		for _, spec := range f.kernel.chain(t, id.table, id.name) {
			if target, _ := jumpTarget(spec); declared.own.has(chainID{id.table, target}) {
				t.Errorf("a jump is left in %s: %s", id.name, spec)
			}
		}
	}
}

// TestChainThatOthersJumpTo stands for an administrator's rule that jumps to a
// chain of a Service: the chain cannot go, everything else does.
func TestChainThatOthersJumpTo(t *testing.T) {
	f := newFixture(t)
	f.set(someServices(4)...)
	f.apply()
	gone := dataplane.ServiceName{Namespace: "ns", Name: "svc2"}
	used := f.plane.actual.services[gone].chains[0].name
	mine := chainID{nat, "MY-CHAIN"}
	f.kernel.set(t, mine, "-j "+used)
	f.remove(gone)
	result := f.apply()
	d, err := f.plane.Verify(context.Background(), f.rules, dataplane.VerifyOptions{})
	if err != nil || d.Count != 0 {
		t.Errorf("a chain that cannot go is no difference to repair: %+v, %v", d, err)
	}
	if w := result.Warnings; len(w) != 1 || !strings.Contains(w[0], "chain "+used+" of table nat") {
		t.Errorf("warnings %q", w)
	}
	f.kernel.set(t, mine)
	f.rules.Full = true
	f.check(f.apply())
}

// TestEndedServiceGoesWithoutPrune: a Service that has ended goes at once, also
// in a full pass that may not remove what it does not know.
func TestEndedServiceGoesWithoutPrune(t *testing.T) {
	f := newFixture(t)
	f.set(someServices(3)...)
	f.apply()
	f.restart()
	f.rules.Prune = false
	delete(f.rules.Services, dataplane.ServiceName{Namespace: "ns", Name: "svc1"}) // not listed yet
	f.remove(dataplane.ServiceName{Namespace: "ns", Name: "svc2"})                 // released
	f.apply()
	rules := f.kernel.chain(t, nat, chainServices)
	for i, want := range []bool{true, true, false} {
		if got := anyMatch(fmt.Sprintf("ns/svc%d:p80 cluster IP", i), rules); got != want {
			t.Errorf("svc%d has a rule: %t, want %t", i, got, want)
		}
	}
}

// TestManyRejected: however many Services are rejected, and wherever they stand,
// the others are served: in one pass where the program names the lines at fault,
// else within a few. A pass that finds the same again is short.
func TestManyRejected(t *testing.T) {
	const bad, good = 300, 20
	for name, isBad := range map[string]func(i int) bool{
		"first":       func(i int) bool { return i < bad },
		"last":        func(i int) bool { return i >= good },
		"interleaved": func(i int) bool { return i%16 != 3 },
	} {
		for _, mute := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,mute=%t", name, mute), func(t *testing.T) {
				f := newFixture(t)
				f.kernel.tables.RejectSilently = mute
				f.kernel.tables.Reject = func(line string) bool { return strings.Contains(line, "-m recent") }
				for i := range bad + good {
					s := testService(fmt.Sprintf("ns/svc%04d", i), fmt.Sprintf("172.30.%d.%d", i/250, i%250),
						dataplane.Port{Available: true, Cluster: endpoints("10.180.0.1:80")})
					if isBad(i) {
						s.AffinitySeconds = 60
					}
					f.set(s)
				}
				for pass := range 8 {
					result := f.apply()
					f.rules.Full = true
					if !mute && pass == 0 || pass == 7 {
						if n := len(result.Rejected); n != bad {
							t.Errorf("pass %d: %d Services rejected, want %d", pass, n, bad)
						}
						if n := len(f.kernel.chain(t, nat, chainServices)) - 1; n != good {
							t.Errorf("pass %d: %d Services served, want %d", pass, n, good)
						}
					}
				}
				if n := len(f.kernel.writes); n > 2*maxRetryRuns { // what is left of the queue is tried once
					t.Errorf("a pass that finds the same again made %d runs", n)
				}
			})
		}
	}
}

// TestOthersDoNotWaitForTheRejected: where a rejected Service and another change
// at once, the other is written first.
func TestOthersDoNotWaitForTheRejected(t *testing.T) {
	f := newFixture(t)
	f.kernel.tables.Reject = func(line string) bool { return strings.Contains(line, "-m recent") }
	services := someServices(3)
	services[0].AffinitySeconds = 60
	f.set(services...)
	f.apply()
	again := *services[0]
	other := testService("ns/svc1", "172.30.0.2", dataplane.Port{Available: true, Cluster: endpoints("10.180.9.9:80")})
	f.set(&again, other)
	result := f.apply()
	if len(result.Rejected) != 1 || !strings.Contains(f.kernel.writes[0], "10.180.9.9:80") || strings.Contains(f.kernel.writes[0], "-m recent") {
		t.Errorf("rejected %v, writes %q", result.Rejected, f.kernel.writes)
	}
}

// TestAllRejected: where the kernel takes no Service, the fault is not theirs.
func TestAllRejected(t *testing.T) {
	f := newFixture(t)
	f.kernel.tables.Reject = func(line string) bool { return strings.Contains(line, "-j DNAT") }
	other := *someServices(20)[19]
	other.Name.Namespace = "other"
	f.set(append(someServices(19), &other)...)
	if _, err := f.plane.Apply(context.Background(), f.rules); err == nil || !strings.Contains(err.Error(), "all 20 Services") {
		t.Errorf("error %v", err)
	}
}

func TestWarnsWhereLocalhostCannotBeServed(t *testing.T) {
	f := newFixture(t)
	f.plane.sysctls = dataplane.Sysctls(filepath.Join(t.TempDir(), "absent"))
	f.set(someServices(2)...)
	result := f.apply()
	if len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], "NodePorts do not answer on 127.0.0.1") {
		t.Errorf("warnings %q", result.Warnings)
	}
	f.set(someServices(3)[2])
	if result = f.apply(); result.Kind != v1alpha1.SyncPartial || len(result.Warnings) != 1 {
		t.Errorf("the next change: %+v", result)
	}
}

// TestHooksLeadToNothingHalfDone: jumps are inserted before there are many
// rules, which makes them cheap, but not where rules of Services from before
// would have an effect before they are up to date.
func TestHooksLeadToNothingHalfDone(t *testing.T) {
	f := newFixture(t)
	f.set(someServices(3)...)
	f.apply()
	isHook := func(w string) bool { return strings.Contains(w, "\n-I OUTPUT ") }
	// The shared chains, the jumps, and all of the Services at once.
	if n := len(f.kernel.writes); n < 3 || isHook(f.kernel.writes[0]) || isHook(f.kernel.writes[n-1]) || !isHook(f.kernel.writes[n-2]) {
		t.Errorf("first load: %q", f.kernel.writes)
	}
	f.kernel.set(t, chainID{nat, "OUTPUT"})
	f.set(testService("ns/svc1", "172.30.0.77", dataplane.Port{Available: true, Cluster: endpoints("10.180.7.7:80")}))
	f.restart()
	f.check(f.apply())
	if !strings.Contains(f.kernel.writes[0], "172.30.0.77") || slices.IndexFunc(f.kernel.writes, isHook) != 1 {
		t.Errorf("rules from before: %q", f.kernel.writes)
	}
}

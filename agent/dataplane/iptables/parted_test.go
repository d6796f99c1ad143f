package iptables

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// stepKernel is a kernel that a test looks at after each call.
type stepKernel struct {
	*fakeKernel
	after func(input string)
	idle  bool // it takes everything and does nothing
}

func (k *stepKernel) apply(ctx context.Context, input string) error {
	var err error
	if !k.idle {
		err = k.fakeKernel.apply(ctx, input)
	}
	if input != "" && k.after != nil {
		k.after(input) // taken or not
	}
	return err
}

// parted is a Service that is too large for one call, beside small ones.
type parted struct {
	*fixture
	kernel  *stepKernel
	ports   int
	ranges  int // sources that may use its load-balancer IP
	longest int // rules of a chain that packets may pass
	calls   int
}

const hugeIP = "172.30.9.9"

func newParted(t *testing.T, ports, longest int) *parted {
	f := newFixture(t)
	p := &parted{fixture: f, kernel: &stepKernel{fakeKernel: f.kernel}, ports: ports, longest: longest}
	p.begin()
	f.set(someServices(2)...)
	return p
}

// begin has the data plane use the kernel, by calls that carry a tenth of what they usually do.
func (p *parted) begin() {
	p.plane.kernel, p.plane.limits = p.kernel, callLimits{rules: 300, chains: 200, large: 6000, part: 75, late: 100}
}

// huge returns the Service with endpoints from one number up to another at each port.
func (p *parted) huge(affinity, from, to int) *dataplane.Service {
	var ports []dataplane.Port
	for n := range p.ports {
		port := dataplane.Port{Name: fmt.Sprintf("p%d", n), Protocol: v1alpha1.ProtocolTCP, Port: uint16(n + 1), Available: to > from}
		for i := from; i < to; i++ {
			port.Cluster = append(port.Cluster, hugeEndpoint(i))
		}
		ports = append(ports, port)
	}
	svc := &dataplane.Service{
		Name: dataplane.ServiceName{Namespace: "ns", Name: "huge"}, ClusterIP: netip.MustParseAddr(hugeIP), Ports: ports,
		AffinitySeconds: int32(affinity),
	}
	if p.ranges > 0 {
		svc.LoadBalancerIPs = addrs("203.0.113.7")
	}
	for i := range p.ranges {
		svc.SourceRanges = append(svc.SourceRanges, hugeRange(i))
	}
	return svc
}

func hugeRange(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, byte(i >> 8), byte(i)}), 32)
}

func hugeEndpoint(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 190, byte(i >> 8), byte(i)}), 8080)
}

// applied applies as watched does and compares the kernel to a fresh plan.
func (p *parted) applied(from, to int, other kernelmodel.Fate) {
	p.Helper()
	p.check(p.watched(from, to, other))
}

// watched applies, and after each call looks at its size and at packets: those to the huge
// Service are delivered to endpoints from one number up to another, or all have the other
// fate.
func (p *parted) watched(from, to int, other kernelmodel.Fate) dataplane.Result {
	p.Helper()
	p.calls = 0
	p.kernel.after = func(input string) {
		p.calls++
		most := max(p.plane.limits.rules, p.longest) + 10
		if p.rules.Full || strings.Contains(input, "\n"+listAll) {
			most = p.plane.limits.large + 10
		}
		if lines := strings.Count(input, "\n"); lines > most {
			p.Errorf("call %d has %d lines, more than %d", p.calls, lines, most)
		}
		for _, n := range []int{1, p.ports} {
			p.expect(fmt.Sprintf("%s:%d", hugeIP, n), other, func(e netip.AddrPort) bool {
				b := e.Addr().As4()
				i := int(b[2])<<8 | int(b[3])
				return e == hugeEndpoint(i) && i >= from && i < to
			})
		}
		if p.plane.actual != nil { // else they are about to come
			p.expect("172.30.0.1:80", "", func(e netip.AddrPort) bool { return strings.HasPrefix(e.String(), "10.180.0.") })
		}
	}
	defer func() { p.kernel.after = nil }()
	return p.apply()
}

// expect traces a packet to an address.
func (p *parted) expect(to string, other kernelmodel.Fate, endpoint func(netip.AddrPort) bool) {
	p.Helper()
	outcomes, err := p.kernel.tables.Trace(kernelmodel.Packet{
		Protocol: "tcp", In: "eth0", Source: netip.MustParseAddr("10.244.7.7"), Destination: netip.MustParseAddrPort(to),
	})
	if err != nil {
		p.Fatalf("call %d: %v", p.calls, err)
	}
	if len(outcomes) == 1 && outcomes[0].Fate == other {
		return
	}
	share := 0.0
	for _, o := range outcomes {
		if o.Fate != kernelmodel.Delivered || !endpoint(o.Endpoint) {
			p.Fatalf("call %d: a packet to %s: %s %s by %v", p.calls, to, o.Fate, o.Endpoint, o.Path)
		}
		share += o.Share
	}
	if math.Abs(share-1) > 0.01 {
		p.Errorf("call %d: of the packets to %s a part of %f is delivered", p.calls, to, share)
	}
}

func (p *parted) expectCalls(what string, least int) {
	p.Helper()
	if p.calls < least {
		p.Errorf("%s takes %d calls, want at least %d", what, p.calls, least)
	}
}

// TestHugeServiceIsWrittenInParts: one that is too large for a call comes, grows, loses
// its endpoints and goes in calls of bounded size, and after each packets go
// their way. A full pass does likewise.
func TestHugeServiceIsWrittenInParts(t *testing.T) {
	for name, c := range map[string]struct {
		ports, endpoints, affinity int
	}{
		"many ports":     {20, 100, 0}, // more than the limit of large calls, too
		"many endpoints": {1, 400, 10800},
	} {
		t.Run(name, func(t *testing.T) {
			p := newParted(t, c.ports, 2*c.endpoints) // with affinity
			p.apply()
			all := c.ports * c.endpoints * 3 / p.plane.limits.rules // chains of endpoints alone

			p.set(p.huge(c.affinity, 0, c.endpoints))
			p.applied(0, c.endpoints, kernelmodel.Passed)
			p.expectCalls("creation", all)

			p.set(p.huge(c.affinity, c.endpoints/2, c.endpoints*3/2)) // half of them are others
			p.applied(0, c.endpoints*3/2, "")
			p.expectCalls("change", all/2)

			p.set(p.huge(c.affinity, 0, 0))
			p.applied(0, c.endpoints*3/2, kernelmodel.Rejected)
			p.expectCalls("loss of all endpoints", all/3)

			p.set(p.huge(c.affinity, 0, c.endpoints))
			p.rules.Full = true
			p.applied(0, c.endpoints, kernelmodel.Rejected)
			if c.ports*c.endpoints*4 > p.plane.limits.large {
				p.expectCalls("creation by a full pass", all)
			}

			p.remove(p.huge(0, 0, 0).Name)
			p.applied(0, c.endpoints, kernelmodel.Passed)
			p.expectCalls("removal", all/3)
		})
	}
}

// TestServiceAtTheLimitsIsWrittenInParts has as many endpoints as its ports may have, which is more
// than the model of the kernel takes in a short time.
func TestServiceAtTheLimitsIsWrittenInParts(t *testing.T) {
	const endpoints = v1alpha1.MaxServicePortEndpoints / v1alpha1.MaxServicePorts
	p := newParted(t, v1alpha1.MaxServicePorts, endpoints)
	p.plane.limits = usualLimits()
	p.apply()
	p.kernel.idle = true
	lines := 0
	p.kernel.after = func(input string) {
		p.calls++
		n := strings.Count(input, "\n")
		if lines += n; n > p.plane.limits.rules+10 {
			t.Errorf("a call has %d lines", n)
		}
	}
	for _, what := range []string{"creation", "removal"} {
		p.calls, lines = 0, 0
		if p.set(p.huge(0, 0, endpoints)); what == "removal" {
			p.remove(p.huge(0, 0, 0).Name)
		}
		p.apply()
		p.expectCalls(what, lines/p.plane.limits.rules)
		if lines < 2*v1alpha1.MaxServicePortEndpoints {
			t.Errorf("%s takes %d lines", what, lines)
		}
	}
}

// TestManyRulesInSharedChainsAreWrittenInParts has one call's worth and more missing there.
func TestManyRulesInSharedChainsAreWrittenInParts(t *testing.T) {
	p := newParted(t, 100, 2)
	huge := p.huge(0, 0, 1)
	// Each address has a rule in each of three chains.
	huge.ExternalLocal, huge.SourceRanges = true, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	for i := range p.plane.limits.large/300 + 1 {
		huge.LoadBalancerIPs = append(huge.LoadBalancerIPs, netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}))
	}
	p.set(huge)
	p.applied(0, 1, kernelmodel.Passed)
	p.expectCalls("a first load", p.plane.limits.large/p.plane.limits.rules)
	p.expect("198.18.0.19:100", "", func(e netip.AddrPort) bool { return e == hugeEndpoint(0) })
}

// TestChangeIsInOneCallIfItFits: the steps are for what does not.
func TestChangeIsInOneCallIfItFits(t *testing.T) {
	p := newParted(t, 3, 100)
	p.set(p.huge(0, 0, 2))
	p.applied(0, 2, kernelmodel.Passed)
	for _, endpoints := range []int{5, 3, 0, 4} {
		p.set(p.huge(0, 0, endpoints))
		p.set(someServices(2)...)
		p.applied(0, 5, kernelmodel.Rejected)
		if p.calls != 1 {
			t.Errorf("%d endpoints: %d calls", endpoints, p.calls)
		}
	}
}

// TestLinesAreCounted: what is estimated of a Service is what is written.
func TestLinesAreCounted(t *testing.T) {
	for _, size := range []int{1, 50} {
		p := newParted(t, size, 0)
		plan := testConfig(t).planService(p.huge(10, 0, size))
		c := &calls{limit: 1 << 30}
		change := changeOf(nil, &plan)
		c.add(change)
		lines := strings.Count(c.list[0].String(), "\n-") + strings.Count(c.list[0].String(), "\n:")
		if want := plan.planned().lines(); lines != want || change.lines() != want || c.list[0].lines != want {
			t.Errorf("%d written, %d counted of the change, %d of the call, want %d", lines, change.lines(), c.list[0].lines, want)
		}
		back := changeOf(plan.planned(), nil)
		c = &calls{limit: 7}
		c.add(back)
		if len(c.list) < back.lines()/7 {
			t.Errorf("%d calls of %d lines", len(c.list), back.lines())
		}
	}
}

// TestRejectedInTheMiddle: of a large Service that the kernel rejects in one of several calls
// it is known what went in before. Packets find complete chains, a retry writes the rest
// alone, and what is no longer desired is removed.
func TestRejectedInTheMiddle(t *testing.T) {
	for name, c := range map[string]struct {
		ports, endpoints, ranges int
		line                     string // that is rejected
	}{
		"a rule of a shared chain": {20, 20, 0, `-I KUBE-SERVICES -m comment --comment "ns/huge:p19 cluster IP"`},
		"a rule of a long chain":   {1, 160, 320, " -s " + hugeRange(220).Addr().String() + "/32 "},
	} {
		t.Run(name, func(t *testing.T) {
			p := newParted(t, c.ports, 2*c.endpoints)
			p.ranges = c.ranges
			p.kernel.other = new(uint32)
			p.apply()
			before := p.kernel.save()
			huge := p.huge(0, 0, c.endpoints)
			huge.Ports = append(huge.Ports, dataplane.Port{Name: "none", Protocol: v1alpha1.ProtocolTCP, Port: 60000}) // the first call has a rule in filter
			reject := func(line string) bool { return strings.Contains(line, c.line) }

			p.kernel.tables.Reject = reject
			p.set(huge, someServices(3)[2])
			result := p.watched(0, 0, kernelmodel.Passed)
			if _, rejected := result.Rejected[huge.Name]; !rejected || len(result.Rejected) != 1 || result.Kind != v1alpha1.SyncPartial || result.ServicesChanged != 1 {
				t.Fatalf("result %+v", result)
			}
			p.expectCalls("creation", 4) // that of the other Service included
			part := p.kernel.save()
			for range 2 {
				if p.watched(0, 0, kernelmodel.Passed); p.calls != 1 {
					t.Errorf("a retry takes %d calls", p.calls)
				}
			}
			if p.kernel.save() != part {
				t.Error("a retry that is rejected leaves something behind")
			}

			p.remove(huge.Name)
			p.remove(someServices(3)[2].Name)
			result = p.watched(0, 0, kernelmodel.Passed)
			p.check(result)
			if p.kernel.save() != before || result.Kind != v1alpha1.SyncPartial {
				t.Errorf("its end leaves something behind, by a sync that is %s", result.Kind)
			}

			p.set(huge)
			p.watched(0, 0, kernelmodel.Passed)
			written := p.calls
			p.kernel.tables.Reject = nil
			p.applied(0, c.endpoints, kernelmodel.Passed)
			if p.calls >= written {
				t.Errorf("the rest takes %d calls after %d", p.calls, written)
			}
			if p.kernel.reads != 1+2 { // two by check
				t.Errorf("the kernel was read %d times", p.kernel.reads)
			}
		})
	}
}

// TestRejectedChangeInTheMiddle: packets may pass chains that are new beside chains that are
// old. That ends by a change back, too. If the kernel has parts of too many versions, all of
// them go first.
func TestRejectedChangeInTheMiddle(t *testing.T) {
	const endpoints = 50
	p := newParted(t, 100, endpoints)
	p.plane.limits = usualLimits()
	p.kernel.other = new(uint32)
	previous, huge := p.huge(0, 0, endpoints), p.huge(0, endpoints/2, endpoints*3/2)
	p.set(previous)
	p.apply()
	late := "-A " + prefixCluster + chainHash(portName(huge.Name, "p90"), "tcp", "") + " "
	reject := func(line string) bool { return strings.HasPrefix(line, late) }
	change := func() {
		t.Helper()
		p.kernel.tables.Reject = reject
		p.set(huge)
		if result := p.watched(0, endpoints*3/2, ""); len(result.Rejected) != 1 || result.Kind != v1alpha1.SyncPartial {
			t.Fatalf("result %+v", result)
		}
		p.expectCalls("the change", 5)
	}

	change()
	if p.watched(0, endpoints*3/2, ""); p.calls != 1 {
		t.Errorf("a retry takes %d calls", p.calls)
	}
	p.set(previous)
	p.applied(0, endpoints*3/2, "")

	change()
	p.plane.engine.Rejected[huge.Name].Actual.chains[0].rules += maxParts
	p.kernel.tables.Reject = nil
	p.applied(0, endpoints*3/2, kernelmodel.Passed)
	if first := p.kernel.writes[0]; !strings.Contains(first, "\n:KUBE-SERVICES ") || strings.Contains(first, huge.Name.String()) {
		t.Errorf("the first call writes %.1000s", first)
	}
}

// TestManySharedRulesAreReplacedAtOnce: the programs look for each rule that is removed alone
// through the whole chain.
func TestManySharedRulesAreReplacedAtOnce(t *testing.T) {
	f := newFixture(t)
	services := someServices(3)
	of := func(net byte, endpoints ...netip.AddrPort) *dataplane.Service {
		s := *services[0]
		s.Ports = slices.Clone(s.Ports)
		s.Ports[0].Cluster, s.Ports[0].Available = endpoints, len(endpoints) > 0
		for i := range maxSingly + 1 {
			s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{198, 51, net, byte(i)}))
		}
		return &s
	}
	endpoint := services[0].Ports[0].Cluster[0]
	f.set(of(1, endpoint), services[1], services[2])
	f.check(f.apply())
	const unmanaged = "-s 192.0.2.1/32 -j RETURN"
	f.kernel.set(t, chainID{nat, chainServices}, append([]string{unmanaged}, f.kernel.chain(t, nat, chainServices)...)...)
	for what, next := range map[string]*dataplane.Service{"other addresses": of(2, endpoint), "no endpoints": of(2), "endpoints": of(3, endpoint), "few addresses": services[0]} {
		f.kernel.writes = nil
		f.set(next)
		if result := f.apply(); result.Kind != v1alpha1.SyncPartial || result.ServicesChanged != 1 || len(result.Rejected) > 0 {
			t.Fatalf("%s: %+v", what, result)
		}
		if all := strings.Join(f.kernel.writes, ""); strings.Count(all, "\n-D ") > 2 {
			t.Errorf("%s: rules go one by one: %.3000s", what, all)
		}
		if rules := f.kernel.chain(t, nat, chainServices); !slices.Contains(rules, unmanaged) || !strings.HasSuffix(rules[len(rules)-1], "-j "+chainNodePorts) {
			t.Errorf("%s: %q", what, rules)
		}
		f.kernel.set(t, chainID{nat, chainServices}, slices.DeleteFunc(f.kernel.chain(t, nat, chainServices), func(r string) bool { return r == unmanaged })...)
		f.check(dataplane.Result{Counts: f.plane.tally.counts()})
		f.kernel.set(t, chainID{nat, chainServices}, append([]string{unmanaged}, f.kernel.chain(t, nat, chainServices)...)...)
	}
}

// TestChainThatCannotBeListed: its rules are replaced one by one.
func TestChainThatCannotBeListed(t *testing.T) {
	f := newFixture(t)
	services := someServices(2)
	large := *services[0]
	for i := range maxSingly + 1 {
		large.ExternalIPs = append(large.ExternalIPs, netip.AddrFrom4([4]byte{198, 51, 1, byte(i)}))
	}
	f.set(&large, services[1])
	f.check(f.apply())
	f.kernel.unlisted = errors.New("table nat is incompatible")
	f.set(services[0])
	result := f.apply()
	if result.Kind != v1alpha1.SyncPartial || len(result.Rejected) > 0 {
		t.Fatalf("%+v", result)
	}
	f.check(result)
}

// TestRejectedInTheMiddleOfAFullPass: what went in and nothing leads to goes, and it is known
// what the kernel has.
func TestRejectedInTheMiddleOfAFullPass(t *testing.T) {
	const endpoints = 160
	p := newParted(t, 1, 2*endpoints)
	p.set(p.huge(10800, 0, endpoints))
	p.applied(0, endpoints, kernelmodel.Passed)
	before := p.kernel.save()

	huge := p.huge(10800, endpoints, 2*endpoints)
	p.kernel.tables.Reject = func(line string) bool { return strings.Contains(line, "--rcheck") } // in the first chain that packets may pass
	p.set(huge)
	p.restart()
	p.begin()
	result := p.watched(0, 2*endpoints, "")
	if _, rejected := result.Rejected[huge.Name]; !rejected || len(result.Rejected) != 1 || result.Kind != v1alpha1.SyncFull {
		t.Fatalf("result %+v", result)
	}
	p.expectCalls("the change", 3)
	if p.kernel.save() != before {
		t.Error("what was rejected leaves something behind")
	}
	p.kernel.tables.Reject = nil
	result = p.watched(0, 2*endpoints, "")
	if p.check(result); result.Kind != v1alpha1.SyncPartial {
		t.Errorf("the sync is %s", result.Kind)
	}
	p.expectCalls("the change that is taken", 3)
}

// TestPartsOnTheRealKernel: the programs take the parts, and what they rejected for a while
// ends where a fresh start does.
func TestPartsOnTheRealKernel(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		restore := filepath.Join(directory, "iptables-restore")
		program, err := os.Readlink(restore)
		if err != nil {
			t.Fatal(err)
		}
		plane, rules := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")}), newRuleset(someServices(1)...)
		mustApply(t, plane, rules)
		if d, err := plane.Verify(t.Context(), rules, dataplane.VerifyOptions{}); err != nil || d.Count > 0 {
			t.Fatal(d, err)
		}
		large := dataplane.ServiceName{Namespace: "ns", Name: "large"}
		apply := func(endpoints, rejected int) {
			t.Helper()
			delete(rules.Services, large)
			rules.Dirty[large] = struct{}{}
			if endpoints > 0 {
				s := numberedService(dataplane.IPv4, large, 1, endpoints)
				s.AffinitySeconds = 10800
				rules.Services[large] = s
			}
			if result := mustApply(t, plane, rules); len(result.Rejected) != rejected || result.Kind != v1alpha1.SyncPartial {
				t.Fatalf("%d endpoints: %s, rejected %v", endpoints, result.Kind, result.Rejected)
			}
			if rejected == 0 {
				holdsAll(t, New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")}), rules)
				rules.Full = false
			}
		}
		rejectLines(t, restore, `-I KUBE-SERVICES -m comment --comment "ns/large`)
		apply(1600, 1)
		apply(1700, 1)
		if err := errors.Join(os.Remove(restore), os.Symlink(program, restore)); err != nil {
			t.Fatal(err)
		}
		for _, endpoints := range []int{1700, 900, 1600, 0} {
			apply(endpoints, 0)
		}
	})
}

// TestAfterAPartOfAChange: what is known after some of the calls and what the others write
// make the whole, and of what was written nothing is written again.
func TestAfterAPartOfAChange(t *testing.T) {
	p := newParted(t, 3, 0)
	config := testConfig(t)
	plans := []*servicePlan{nil}
	for _, s := range []*dataplane.Service{p.huge(0, 0, 4), p.huge(10, 2, 9), p.huge(0, 0, 0)} {
		plan := config.planService(s)
		plans = append(plans, &plan)
	}
	know := func(plan *servicePlan) *planned {
		if plan == nil {
			return nil
		}
		return plan.planned()
	}
	for _, from := range plans {
		for _, to := range plans {
			c := &calls{limit: 7}
			change := changeOf(know(from), to)
			c.add(change)
			for n := range len(c.list) + 1 {
				known := know(from).after(c.list[:n])
				rest := changeOf(known, to)
				if n == len(c.list) && rest.lines() > 0 {
					t.Errorf("%d lines are left after all calls", rest.lines())
				}
				if n > 0 && rest.lines() >= change.lines() {
					t.Errorf("%d lines are left of %d after %d calls", rest.lines(), change.lines(), n)
				}
				others := &calls{limit: 7}
				others.add(rest)
				if left := changeOf(known.after(others.list), to); left.lines() > 0 {
					t.Errorf("%d lines are left after %d calls and the rest", left.lines(), n)
				}
			}
		}
	}
}

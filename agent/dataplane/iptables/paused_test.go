package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
)

// paused is a Service that is written in parts: each Apply has a call, and then other changes wait.
func newPaused(t *testing.T, endpoints int) *parted {
	p := newParted(t, 50, 2*endpoints)
	p.kernel.other = new(uint32)
	p.apply()
	p.rules.Pause = func() bool { return true }
	return p
}

// part applies once and checks that what is left is known: a verification finds no difference.
func (p *parted) part(from, to int, other kernelmodel.Fate) (unfinished bool) {
	p.Helper()
	result := p.watched(from, to, other)
	if result.Kind != "Partial" || len(result.Rejected) > 0 || p.calls > 2 {
		p.Fatalf("%d calls: %+v", p.calls, result)
	}
	d, err := p.plane.Verify(p.Context(), p.rules, dataplane.VerifyOptions{})
	if err != nil || d.Count > 0 || d.Drifted {
		p.Fatalf("between parts: %+v, %v", d, err)
	}
	if len(result.Unfinished) == 0 {
		p.check(result)
		return false
	}
	if _, is := result.Unfinished[p.huge(0, 0, 0).Name]; !is || len(result.Unfinished) > 1 {
		p.Fatalf("unfinished: %v", result.Unfinished)
	}
	return true
}

// rest applies until nothing is left, and returns how often.
func (p *parted) rest(next *dataplane.Service, from, to int, other kernelmodel.Fate) (parts int) {
	p.Helper()
	name := p.huge(0, 0, 0).Name
	const most = 100
	for parts = 1; parts < most; parts++ {
		p.remove(name)
		if next != nil {
			p.set(next)
		}
		if !p.part(from, to, other) {
			return parts
		}
	}
	p.Fatalf("after %d parts it is not written", most)
	return most
}

// TestPauseAmidALongChain, of which one call carries a part, does not begin it anew.
func TestPauseAmidALongChain(t *testing.T) {
	const endpoints = 10
	p := newParted(t, 1, 2*endpoints)
	p.ranges = 320
	p.apply()
	p.rules.Pause = func() bool { return true }
	for range 10 {
		p.set(p.huge(0, 0, endpoints))
		if result := p.apply(); len(result.Unfinished) == 0 {
			p.check(result)
			return
		}
	}
	t.Error("it is not written")
}

// TestPauseBetweenParts: after each part packets meet complete chains, and other Services are written
// in between.
func TestPauseBetweenParts(t *testing.T) {
	const endpoints = 10
	p := newPaused(t, endpoints)
	huge := p.huge(0, 0, endpoints)
	p.set(huge)
	if !p.part(0, endpoints, kernelmodel.Passed) {
		t.Fatal("no part is left")
	}
	small := someServices(3)[2]
	p.set(small)
	if !p.part(0, endpoints, kernelmodel.Passed) || !slices.ContainsFunc(p.fixture.kernel.writes, func(w string) bool { return strings.Contains(w, small.Name.String()) }) {
		t.Fatal("the small change waits, or the part that is left is forgotten")
	}
	if len(p.fixture.kernel.writes) != 1 {
		t.Errorf("a small change writes %d times", len(p.fixture.kernel.writes))
	}
	if parts := p.rest(huge, 0, endpoints, kernelmodel.Passed); parts < 3*p.ports*endpoints/p.plane.limits.part {
		t.Errorf("%d parts are left: others' changes wait for more lines than a part has", parts)
	}
	next := p.huge(0, endpoints/2, endpoints*3/2)
	if parts := p.rest(next, 0, endpoints*3/2, ""); parts < 4 {
		t.Errorf("a change takes %d parts", parts)
	}
	p.set(huge)
	p.part(0, endpoints*3/2, "") // and back
	p.rest(next, 0, endpoints*3/2, "")
	p.rest(p.huge(0, 0, 0), 0, endpoints*3/2, kernelmodel.Rejected)
	p.rest(huge, 0, endpoints, kernelmodel.Rejected)
	p.set(next)
	p.part(0, endpoints*3/2, "")
	if parts := p.rest(nil, 0, endpoints*3/2, kernelmodel.Passed); parts < 2 {
		t.Errorf("the end takes %d parts", parts)
	}
}

// TestSmallOnesComeBeforeTheFirstPart, and others that are large after the last one.
func TestSmallOnesComeBeforeTheFirstPart(t *testing.T) {
	const endpoints = 10
	p := newPaused(t, endpoints)
	huge := p.huge(0, 0, endpoints)
	other := *huge
	other.Name.Name, other.ClusterIP = "zz", someServices(9)[8].ClusterIP
	p.set(huge, &other, someServices(3)[2])
	p.kernel.after = nil
	result := p.apply()
	if len(result.Unfinished) != 2 || result.ServicesChanged != 1 {
		t.Fatalf("changed %d, unfinished %v", result.ServicesChanged, result.Unfinished)
	}
	p.rules.Pause = func() bool { return false }
	p.set(huge)
	if result = p.apply(); len(result.Unfinished) != 1 || result.ServicesChanged != 1 {
		t.Fatalf("changed %d, unfinished %v", result.ServicesChanged, result.Unfinished)
	}
	p.set(&other)
	if result = p.apply(); len(result.Unfinished) != 0 {
		t.Fatalf("unfinished %v", result.Unfinished)
	}
	p.check(result)
}

// TestSmallOnesComeBeforeAnyPart: Services that take more than one call, but no more than others do
// together, are written after all that do not.
func TestSmallOnesComeBeforeAnyPart(t *testing.T) {
	p := newParted(t, 10, 100)
	p.apply()
	p.rules.Pause = func() bool { return true }
	small := someServices(9)[8]
	small.Name = dataplane.ServiceName{Namespace: "zz", Name: "small"}
	p.set(small)
	for n := range 4 {
		more := *p.huge(0, 0, 6)
		more.Name.Name, more.ClusterIP = fmt.Sprintf("huge%d", n), netip.AddrFrom4([4]byte{172, 30, 1, byte(n + 1)})
		p.set(&more)
	}
	p.kernel.after = nil
	result := p.apply()
	if _, left := result.Unfinished[small.Name]; left || len(result.Unfinished) == 0 {
		t.Errorf("unfinished %v: want some, but not %s", result.Unfinished, small.Name)
	}
}

// TestKilledBetweenParts: the next agent does not know what was written, and writes the rest.
func TestKilledBetweenParts(t *testing.T) {
	const endpoints = 10
	for name, next := range map[string]func(p *parted) *dataplane.Service{
		"same": func(p *parted) *dataplane.Service { return p.huge(0, endpoints/2, endpoints*3/2) },
		"back": func(p *parted) *dataplane.Service { return p.huge(0, 0, endpoints) },
		"gone": func(*parted) *dataplane.Service { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPaused(t, endpoints)
			p.rest(p.huge(0, 0, endpoints), 0, endpoints, kernelmodel.Passed)
			for range 2 {
				p.set(p.huge(0, endpoints/2, endpoints*3/2))
				p.part(0, endpoints*3/2, "")
			}
			p.restart()
			p.begin()
			p.remove(p.huge(0, 0, 0).Name)
			other := kernelmodel.Passed
			if s := next(p); s != nil {
				p.set(s)
				other = ""
			}
			result := p.watched(0, endpoints*3/2, other)
			if p.check(result); result.Kind != "Full" || len(result.Unfinished) > 0 {
				t.Errorf("%+v", result)
			}
		})
	}
}

// TestRejectedInALaterPart: the Service is rejected alone, what earlier parts wrote is known, and a
// retry writes the rest.
func TestRejectedInALaterPart(t *testing.T) {
	const endpoints = 10
	p := newPaused(t, endpoints)
	huge := p.huge(0, 0, endpoints)
	late := "-A " + prefixCluster + chainHash(portName(huge.Name, "p25"), "tcp", "") + " "
	p.kernel.tables.Reject = func(line string) bool { return strings.HasPrefix(line, late) }
	p.set(huge)
	for n := 0; p.plane.engine.Rejected[huge.Name].Reason == ""; n++ {
		result := p.watched(0, endpoints, kernelmodel.Passed)
		if _, unfinished := result.Unfinished[huge.Name]; unfinished == (len(result.Rejected) > 0) || n > 20 {
			t.Fatalf("part %d: rejected %v, unfinished %v", n, result.Rejected, result.Unfinished)
		}
		p.set(huge, someServices(3)[2])
	}
	part := p.kernel.save()
	if result := p.watched(0, endpoints, kernelmodel.Passed); len(result.Rejected) != 1 || len(result.Unfinished) > 0 || p.kernel.save() != part {
		t.Fatalf("a retry: %+v", result)
	}
	p.kernel.tables.Reject = nil
	p.set(huge)
	result := p.watched(0, endpoints, kernelmodel.Passed) // as one that was rejected, it remains so until it is complete
	if len(result.Rejected) != 1 || len(result.Unfinished) != 1 {
		t.Fatalf("the first part that is taken: %+v", result)
	}
	p.rules.Pause = nil
	p.set(huge)
	if result = p.watched(0, endpoints, kernelmodel.Passed); len(result.Rejected)+len(result.Unfinished) > 0 || result.Kind != "Partial" {
		t.Fatalf("the rest: %+v", result)
	}
	p.check(result)
}

// TestFullPassDoesNotPause, and ends what was left.
func TestFullPassDoesNotPause(t *testing.T) {
	p := newPaused(t, 10)
	p.set(p.huge(0, 0, 10))
	p.part(0, 10, kernelmodel.Passed)
	p.rules.Full = true
	if result := p.watched(0, 10, kernelmodel.Passed); len(result.Unfinished) > 0 {
		t.Fatalf("%+v", result)
	}
	p.set(someServices(3)[2])
	p.check(p.watched(0, 10, kernelmodel.Passed))
}

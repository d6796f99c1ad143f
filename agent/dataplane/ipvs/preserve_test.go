package ipvs_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// TestPrune: without Prune, what belongs to no Service stays.
func TestPrune(t *testing.T) {
	b := newBench(t)
	one, two := service(1, "10.180.0.1:80"), service(2, "10.180.0.2:80")
	b.set(one, two)
	b.apply()
	full := b.state()
	b.r.Prune = false
	b.remove(two)
	b.r.Dirty = map[dataplane.ServiceName]struct{}{} // as of an agent that has not seen it
	b.restart()
	b.apply()
	if got := b.state(); got != full {
		t.Errorf("%s\nwant\n%s", got, full)
	}
	b.set(with(one, "10.180.0.9:80"))
	b.r.Full = true
	if b.apply(); b.kernel.Server(tcp("10.0.0.1", 80)) != "rr 10.180.0.9:80" {
		t.Errorf("%s", b.state())
	}
	// Of one that has ended, what we have made goes all the same.
	b.set(two)
	b.apply()
	b.remove(two)
	b.r.Full = true
	if b.apply(); b.kernel.Server(tcp("10.0.0.2", 80)) != "" || slices.Contains(b.kernel.Entries("KUBE-CLUSTER-IP"), "10.0.0.2,tcp:80") {
		t.Error(b.state())
	}
}

// TestRulesOfUnknownServices: they stay without Prune.
func TestRulesOfUnknownServices(t *testing.T) {
	b := newBench(t)
	s := service(1, "10.180.0.1:80")
	s.LoadBalancerIPs, s.SourceRanges = []netip.Addr{ip("1.2.3.4")}, []netip.Prefix{netip.MustParsePrefix("9.0.0.0/8")}
	b.set(s)
	b.apply()
	before := b.state()
	b.remove(s)
	b.r.Dirty, b.r.Prune = map[dataplane.ServiceName]struct{}{}, false
	b.restart()
	b.apply()
	if got := b.state(); got != before || !strings.Contains(got, "--vaddr 1.2.3.4") {
		t.Errorf("%s\nwant\n%s", got, before)
	}
	b.verified()
	b.set(service(2, "10.180.0.2:80"))
	b.apply()
	if !strings.Contains(b.state(), "--vaddr 1.2.3.4") {
		t.Error(b.state())
	}
	b.verified()
	b.r.Prune, b.r.Full = true, true
	b.remove(service(2))
	b.apply()
	if got, want := b.state(), b.fresh(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// TestKeep: the actual state of a Service from the checkpoint stays.
func TestKeep(t *testing.T) {
	b := newBench(t)
	one, two := service(1, "10.180.0.1:80", "10.180.0.2:80"), service(2, "10.180.0.3:80")
	one.LoadBalancerIPs = []netip.Addr{ip("1.2.3.4")}
	b.set(one, two)
	b.apply()
	before := b.state()
	old := with(one, "10.180.0.1:80", "10.180.0.7:80")
	old.AffinitySeconds, old.ExternalLocal = 60, true
	old.SourceRanges = []netip.Prefix{netip.MustParsePrefix("9.0.0.0/8")}
	old.Ports[0].Local = ends("10.180.0.7:80")
	b.set(old)
	b.r.Preserve = map[dataplane.ServiceName]struct{}{one.Name: {}}
	b.r.Prune = false
	b.restart()
	b.apply()
	b.wants()
	if got := b.state(); got != before {
		t.Errorf("%s\nwant\n%s", got, before)
	}
	b.verified()
	if err := b.kernel.DeleteServer(tcp("10.0.0.1", 80)); err != nil {
		t.Fatal(err)
	}
	b.restart()
	b.apply()
	b.wants("AddServer 10.0.0.1,tcp:80 rr 0x1 60", "AddReal 10.0.0.1,tcp:80 10.180.0.1:80 1", "AddReal 10.0.0.1,tcp:80 10.180.0.7:80 1")
	// The real state comes.
	b.r.Preserve, b.r.Prune = nil, true
	b.set(one)
	if b.apply(); b.state() != before {
		t.Errorf("%s\nwant\n%s", b.state(), before)
	}
}

// external returns a Service with a load-balancer IP under policy Local.
func external(n int, local []string, cluster ...string) *dataplane.Service {
	s := service(n, cluster...)
	s.LoadBalancerIPs, s.ExternalLocal = []netip.Addr{ip("1.2.3.4")}, true
	s.Ports[0].Local = ends(local...)
	return s
}

// TestKeepKeepsClientsOutsideOut: the actual state of a Service from the checkpoint leads to other
// nodes only while clients outside are blocked from there.
func TestKeepKeepsClientsOutsideOut(t *testing.T) {
	const remote, local = "10.181.0.1:80", "10.180.0.1:80"
	key, entry := tcp("1.2.3.4", 80), "1.2.3.4,tcp:80"
	for _, c := range []struct {
		name     string
		held     *dataplane.Service // what the kernel has
		old      *dataplane.Service // from disk
		want     string
		hasEntry bool // the ipset has it
		restarts bool
	}{
		{"no local endpoint before", external(1, nil, remote), external(1, []string{local}, remote, local), "rr " + remote, true, true},
		{"the same agent", external(1, nil, remote), external(1, []string{local}, remote, local), "rr " + remote, true, false},
		{"a local endpoint before", external(1, []string{local}, local), external(1, nil, remote), "rr " + local, false, true},
		{"no endpoint before", external(1, nil), external(1, nil, remote), "rr " + remote, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			b.set(c.held)
			b.apply()
			b.set(c.old)
			b.r.Preserve, b.r.Prune = map[dataplane.ServiceName]struct{}{c.old.Name: {}}, false
			if c.restarts {
				b.restart()
			}
			b.r.Full = true
			b.apply()
			has := slices.Contains(b.kernel.Entries("NODEPROXY-NO-LOCAL"), entry)
			if got := b.kernel.Server(key); got != c.want || has != c.hasEntry || b.rules.asks("NODEPROXY-NO-LOCAL") != c.hasEntry {
				t.Errorf("%s, entry %t\n%s", got, has, b.state())
			}
		})
	}
}

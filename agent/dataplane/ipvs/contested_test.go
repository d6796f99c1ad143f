package ipvs_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs/ipvsmodel"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// contenders are a Service with NodePort 30080 and one with an address of the node
// and the same port.
func contenders(nodePort, external dataplane.Precedence) (byNodePort, byAddress *dataplane.Service) {
	byNodePort, byAddress = service(2, "10.180.0.2:80"), service(1, "10.180.0.1:80")
	byNodePort.Ports[0].NodePort, byNodePort.Precedence = 30080, nodePort
	byAddress.Ports[0].Port, byAddress.Precedence = 30080, external
	byAddress.ExternalIPs = []netip.Addr{ip("192.168.0.2")}
	return byNodePort, byAddress
}

// contest checks which contender has what both ask for. The NodePort always answers on the node's
// other address.
func (b *bench) contest(when string, result dataplane.Result, nodePortWins bool) {
	b.Helper()
	loser, at := "svc0002", "rr 10.180.0.1:80"
	if nodePortWins {
		loser, at = "svc0001", "rr 10.180.0.2:80"
	}
	for _, why := range result.Rejected {
		if !strings.Contains(why, v1alpha1.ServedForAnother) { // by which the controller knows it
			b.Errorf("%s: %s", when, why)
		}
	}
	if got := names(result.Rejected); !slices.Equal(got, []string{loser}) {
		b.Errorf("%s: rejected %v, want %s", when, result.Rejected, loser)
	}
	// As it is served, the loser lacks this one address, and has its NodePort on others.
	lost := []netip.Addr(nil)
	if nodePortWins {
		lost = []netip.Addr{ip("192.168.0.2")}
	}
	for name, svc := range result.Reduced {
		if p, whole := svc.Ports[0], b.r.Services[name].Ports[0]; !slices.Equal(p.Lost, lost) || p.NodePort != whole.NodePort {
			b.Errorf("%s: served of %s is %+v", when, name, p)
		}
	}
	if got := names(result.Reduced); !slices.Equal(got, []string{loser}) {
		b.Errorf("%s: served but for what is another's are %v, want %s", when, got, loser)
	}
	if got := b.kernel.Server(tcp("192.168.0.2", 30080)); got != at {
		b.Errorf("%s: at the contested address %q, want %q", when, got, at)
	}
	if got := b.kernel.Server(tcp("192.168.1.2", 30080)); got != "rr 10.180.0.2:80" {
		b.Errorf("%s: at the other address %q", when, got)
	}
	if got := b.kernel.Entries("KUBE-NODE-PORT-TCP"); !slices.Equal(got, []string{"30080"}) {
		b.Errorf("%s: ports of NodePorts %v", when, got)
	}
	if got := len(b.kernel.Entries("KUBE-EXTERNAL-IP")) == 0; got != nodePortWins {
		b.Errorf("%s: external addresses %v", when, b.kernel.Entries("KUBE-EXTERNAL-IP"))
	}
	b.verified()
}

// TestContested: a NodePort and another Service's address meet on an address of the node. A live
// Service's claim is better than a retained one's, then the older one's, then that of the lower
// name, in any order and after a restart.
func TestContested(t *testing.T) {
	at := func(n int64) dataplane.Precedence { return dataplane.Precedence{Created: time.Unix(n, 0)} }
	retained := func(n int64) dataplane.Precedence {
		return dataplane.Precedence{Created: time.Unix(n, 0), Retained: true}
	}
	for _, c := range []struct {
		name               string
		nodePort, external dataplane.Precedence
		nodePortWins       bool
	}{
		{"the NodePort is older", at(1), at(2), true},
		{"the NodePort is younger", at(2), at(1), false},
		{"of one age", at(1), at(1), false},
		{"the NodePort is older, but retained", retained(1), at(2), false},
		{"the NodePort is younger, the other one retained", at(2), retained(1), true},
		{"the NodePort is of no age", dataplane.Precedence{}, at(9), false},
		{"the other one is of no age", at(9), dataplane.Precedence{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var states []string
			for _, first := range []bool{true, false} {
				b := newBench(t)
				one, two := contenders(c.nodePort, c.external)
				if !first {
					one, two = two, one
				}
				b.set(one)
				b.apply()
				b.set(two)
				b.contest("one after the other", b.apply(), c.nodePortWins)
				b.set(with(two, two.Ports[0].Cluster[0].String()))
				b.contest("the second one has changed", b.apply(), c.nodePortWins)
				b.restart()
				b.contest("after a restart", b.apply(), c.nodePortWins)
				b.wants()
				states = append(states, b.state())
			}
			if states[0] != states[1] {
				t.Errorf("the order decides:\n%s\n\n%s", states[0], states[1])
			}
		})
	}
}

// TestContestedAnew: the winner changes with the precedence, and when one of them ends.
func TestContestedAnew(t *testing.T) {
	b := newBench(t)
	nodePort, external := contenders(dataplane.Precedence{Created: time.Unix(1, 0)}, dataplane.Precedence{Created: time.Unix(2, 0)})
	b.set(nodePort, external)
	b.contest("initially", b.apply(), true)
	gone := *nodePort
	gone.Precedence.Retained = true
	b.set(&gone)
	b.contest("the winner is retained", b.apply(), false)
	b.set(nodePort)
	b.contest("it is back", b.apply(), true)
	b.remove(nodePort)
	if result := b.apply(); len(result.Rejected) != 0 || b.kernel.Server(tcp("192.168.0.2", 30080)) != "rr 10.180.0.1:80" ||
		b.kernel.Server(tcp("192.168.1.2", 30080)) != "" || len(b.kernel.Entries("KUBE-NODE-PORT-TCP")) != 0 {
		t.Errorf("the winner has ended: %v\n%s", result.Rejected, b.state())
	}
	b.verified()
	b.set(nodePort)
	b.contest("it is new", b.apply(), true)
	b.remove(external)
	if result := b.apply(); len(result.Rejected) != 0 {
		t.Errorf("the loser has ended: %v", result.Rejected)
	}
	b.verified()
}

// TestContestedSources: rules match the port of a NodePort on all addresses. They must not
// masquerade clients of another Service's address under policy Local.
func TestContestedSources(t *testing.T) {
	const key = "192.168.0.2,tcp:30080"
	for _, balancer := range []bool{false, true} {
		b := newBench(t)
		nodePort, local := contenders(dataplane.Precedence{Created: time.Unix(2, 0)}, dataplane.Precedence{Created: time.Unix(1, 0)})
		local.ExternalLocal = true
		local.Ports[0].Local = local.Ports[0].Cluster
		if balancer {
			local.ExternalIPs, local.LoadBalancerIPs = nil, local.ExternalIPs
		}
		b.set(nodePort, local)
		b.apply()
		// These are accepted before NodePorts are marked.
		if got := b.kernel.Entries("KUBE-EXTERNAL-IP-LOCAL"); !slices.Equal(got, []string{key}) {
			t.Errorf("load balancer %t: accepted early are %v", balancer, got)
		}
		if got := b.kernel.Entries("KUBE-EXTERNAL-IP"); len(got) != 0 {
			t.Errorf("load balancer %t: masqueraded are %v", balancer, got)
		}
		before := slices.IndexFunc(b.chain("nat", "KUBE-SERVICES"), func(r string) bool {
			return r == "-m set --match-set KUBE-EXTERNAL-IP-LOCAL dst,dst -m addrtype --dst-type LOCAL -j ACCEPT"
		})
		after := slices.Index(b.chain("nat", "KUBE-SERVICES"), "-m addrtype --dst-type LOCAL -j KUBE-NODE-PORT")
		if before < 0 || before > after {
			t.Errorf("load balancer %t: %q", balancer, b.chain("nat", "KUBE-SERVICES"))
		}
		b.remove(nodePort)
		b.apply()
		if got := len(b.kernel.Entries("KUBE-EXTERNAL-IP-LOCAL")) == 0; got != balancer {
			t.Errorf("load balancer %t: left are %v", balancer, b.kernel.Entries("KUBE-EXTERNAL-IP-LOCAL"))
		}
		b.verified()
	}
}

// TestContestedSCTP: an SCTP port is in the ipset with each address.
func TestContestedSCTP(t *testing.T) {
	b := newBench(t)
	nodePort, external := contenders(dataplane.Precedence{Created: time.Unix(2, 0)}, dataplane.Precedence{Created: time.Unix(1, 0)})
	nodePort.Ports[0].Protocol, external.Ports[0].Protocol = v1alpha1.ProtocolSCTP, v1alpha1.ProtocolSCTP
	b.set(nodePort, external)
	b.apply()
	if got := b.kernel.Entries("KUBE-NODE-PORT-SCTP-HASH"); !slices.Equal(got, []string{"192.168.1.2,sctp:30080"}) {
		t.Errorf("%v", got)
	}
	b.verified()
}

// chain returns the rules of a chain.
func (b *bench) chain(table, name string) []string {
	for _, c := range b.rules.held.Chains {
		if c.Table == table && c.Name == name {
			return c.Rules
		}
	}
	return nil
}

// TestContestedAlone: changes of Services that ask for the same are written without a full pass.
func TestContestedAlone(t *testing.T) {
	b := newBench(t)
	nodePort, external := contenders(dataplane.Precedence{Created: time.Unix(1, 0)}, dataplane.Precedence{Created: time.Unix(2, 0)})
	b.set(nodePort)
	b.apply()
	apply := func(when string) dataplane.Result {
		t.Helper()
		result := b.apply()
		if result.Kind != v1alpha1.SyncPartial {
			t.Errorf("%s: %+v", when, result)
		}
		return result
	}
	b.set(external)
	b.contest("a younger one comes", apply("a younger one comes"), true)
	b.set(with(nodePort, "10.180.0.2:80", "10.180.0.22:80"))
	apply("endpoints of the winner")
	if got := b.kernel.Server(tcp("192.168.0.2", 30080)); got != "rr 10.180.0.2:80 10.180.0.22:80" {
		t.Error(got)
	}
	b.verified()
	b.set(with(external, "10.180.0.11:80"))
	apply("endpoints of the loser")
	if got := b.kernel.Server(tcp(external.ClusterIP.String(), 30080)); got != "rr 10.180.0.11:80" {
		t.Error(got)
	}
	b.verified()
	b.r.Rest = nil // its time has come
	b.set(nodePort, external)
	b.contest("as before", apply("as before"), true)
	b.remove(nodePort)
	if result := apply("the winner ends"); len(result.Rejected) != 0 || b.kernel.Server(tcp("192.168.0.2", 30080)) != "rr 10.180.0.1:80" {
		t.Errorf("%v\n%s", result.Rejected, b.state())
	}
	b.verified()
	b.set(nodePort)
	b.contest("the older one is back", apply("the older one is back"), true)
	retained := *nodePort
	retained.Precedence.Retained = true
	b.set(&retained)
	b.contest("it is retained", apply("it is retained"), false)
}

// TestLargeServicesComeLast: others do not wait for them.
func TestLargeServicesComeLast(t *testing.T) {
	for name, enlarge := range map[string]func(*dataplane.Service){
		"external IPs": func(s *dataplane.Service) {
			for i := range 600 {
				s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}))
			}
		},
		"source ranges": func(s *dataplane.Service) {
			s.LoadBalancerIPs = []netip.Addr{ip("203.0.113.1")}
			for i := range 600 {
				s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), 32))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.set(service(1, "10.180.0.1:80"), service(2, "10.180.0.2:80"))
			b.apply()
			large := service(1, "10.180.0.11:80")
			enlarge(large)
			for _, one := range []*dataplane.Service{large, service(1, "10.180.0.12:80")} { // and when it ends to be large
				b.set(one, service(2, "10.180.0.2"+one.Ports[0].Cluster[0].String()[len("10.180.0.1"):]))
				if result := b.apply(); result.Kind != v1alpha1.SyncPartial || result.ServicesChanged != 2 {
					t.Fatalf("%+v", result)
				}
				calls := b.kernel.Calls()
				of := func(net string) func(ipvsmodel.Call) bool {
					return func(c ipvsmodel.Call) bool {
						return c.Method == "AddReal" && strings.HasPrefix(c.Key.Addr.String(), net)
					}
				}
				first, next := slices.IndexFunc(calls, of("10.0.0.2")), slices.IndexFunc(calls, of("10.0.0.1"))
				if first < 0 || next < first {
					t.Errorf("the large Service is written at %d, the other one at %d", next, first)
				}
				b.verified()
			}
		})
	}
}

package conntrack

import (
	"net/netip"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestContestedServices: in mode IPVS a NodePort and an address of another Service are one on an
// address of the node. Whichever Service has it, its flows are judged by it, and all else of the
// other one goes on.
func TestContestedServices(t *testing.T) {
	const at = "192.0.2.21:30053"
	nodePort := service("np", "ip 172.30.0.41 port 53 np 30053 ep 10.180.0.1:53")
	external := service("ext", "ip 172.30.0.42 ext 192.0.2.21 port 30053 ep 10.180.0.2:53")
	for name, c := range map[string]struct {
		first, second *dataplane.Service // the second one has it
		loser         *dataplane.Service // the first one as it is programmed then
		has, lost     string             // endpoints
	}{
		"the NodePort has it": {
			external, nodePort, service("ext", "ip 172.30.0.42 ext 192.0.2.21 port 30053 lost 192.0.2.21 ep 10.180.0.2:53"),
			"10.180.0.1:53", "10.180.0.2:53",
		},
		"the address has it": {
			nodePort, external, service("np", "ip 172.30.0.41 port 53 np 30053 ep 10.180.0.1:53"),
			"10.180.0.2:53", "10.180.0.1:53",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newState(v1alpha1.ProtocolUDP)
			judges := func(when string, r *dataplane.Ruleset, result dataplane.Result, wants map[Flow]Reason) {
				t.Helper()
				r.Mode, result.OwnFlows = v1alpha1.ModeIPVS, true
				s.commit(r, result)
				p := s.take()
				var err error
				if p.answers, err = nodePortsAnswer(dataplane.IPv4, &r.Node, addressesOf[dataplane.IPv4]); err != nil {
					t.Fatal(err)
				}
				for f, want := range wants {
					f.OutsideNAT = true
					if got := p.judge(f); got != want {
						t.Errorf("%s: %s: %q, want %q", when, f, got, want)
					}
				}
			}
			cluster := netip.AddrPortFrom(c.first.ClusterIP, c.first.Ports[0].Port).String()
			judges("alone", ruleset(true, list{c.first}), dataplane.Result{}, map[Flow]Reason{
				flow(at, c.lost): "", flow(at, c.has): EndpointGone, flow(cluster, c.lost): "",
			})
			judges("both", ruleset(false, list{c.first, c.second}, c.second.Name.Name), dataplane.Result{
				Kind:     v1alpha1.SyncPartial,
				Rejected: map[dataplane.ServiceName]string{c.first.Name: v1alpha1.ServedForAnother},
				Reduced:  map[dataplane.ServiceName]*dataplane.Service{c.first.Name: c.loser},
			}, map[Flow]Reason{
				flow(at, c.has): "", flow(at, c.lost): EndpointGone,
				flow(cluster, c.lost): "", flow(cluster, "10.180.0.9:53"): EndpointGone,
			})
			judges("alone again", ruleset(false, list{c.first}, c.second.Name.Name), dataplane.Result{Kind: v1alpha1.SyncPartial}, map[Flow]Reason{
				flow(at, c.lost): "", flow(at, c.has): EndpointGone, flow(cluster, c.lost): "",
			})
		})
	}
}

package scenarios

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// TestAddressesOfNodes: a Service that names addresses of Nodes does not get a port there that
// is another Service's node port, however old it is. In mode IPVS it gets no port of another
// Node.
func TestAddressesOfNodes(t *testing.T) {
	const own, others = "192.168.0.2", "192.168.0.3"
	nodes := addrs(own, others)
	for mode, newOne := range map[string]func(*testing.T, dataplane.Family) *world{"iptables": newWorld, "IPVS": newIPVSWorld} {
		for _, balanced := range []bool{false, true} {
			t.Run(mode, func(t *testing.T) {
				w := newOne(t, dataplane.IPv4)
				w.Cluster = render.Cluster{OfNode: func(a netip.Addr) bool { return slices.Contains(nodes, a) }}
				older := Service{
					Name: "older", CIP: "172.30.0.41", XIPs: []string{own, others, "1.2.3.4"}, Ports: []string{"a:3001=80", "b:8080=80"},
					Endpoints: []string{"L 10.180.0.1"}, Edit: func(o *corev1.Service) { o.CreationTimestamp = metav1.Unix(1700000000, 0) },
				}
				if balanced {
					older.XIPs, older.VIPs = nil, older.XIPs
				}
				owner := Service{Name: "owner", CIP: "172.30.0.42", NP: 3001, Endpoints: []string{"L 10.180.0.2"}}
				elsewhere := "10.180.0.1 +M"
				if mode == "IPVS" {
					elsewhere = "PASS"
				}
				w.Add(older)
				w.Sync()
				w.sees(EXT, own+":3001", "10.180.0.1 +M")
				w.Add(owner)
				w.Sync()
				for _, from := range []string{EXT, NODE} {
					w.sees(from, own+":3001", "10.180.0.2 +M")
				}
				w.sees(EXT, own+":8080", "10.180.0.1 +M")
				w.sees(EXT, "1.2.3.4:3001", "10.180.0.1 +M") // no Node has it
				w.sees(POD, others+":3001", "PASS")          // that Node's node port
				w.sees(POD, others+":8080", elsewhere)
				w.sees(POD, "172.30.0.41:8080", "10.180.0.1 -M")
			})
		}
	}
}

// TestUnclaimedAddresses: what no Service may have is not programmed, and the rest of the
// Service is.
func TestUnclaimedAddresses(t *testing.T) {
	for mode, newOne := range map[string]func(*testing.T, dataplane.Family) *world{"iptables": newWorld, "IPVS": newIPVSWorld} {
		t.Run(mode, func(t *testing.T) {
			w := newOne(t, dataplane.IPv4)
			w.Cluster = render.Cluster{
				APIServers: map[netip.Addr][]uint16{netip.MustParseAddr("192.168.0.9"): {6443}}, Ranges: render.NewServiceRanges([]string{"172.30.0.0/16"}),
			}
			w.Add(Service{
				CIP: "172.30.0.41", Endpoints: []string{"L 10.180.0.1"}, VIPs: []string{"169.254.169.254"},
				XIPs: []string{"127.0.0.1", "192.168.0.9", "172.30.0.77", "1.2.3.4"},
			})
			w.Sync()
			w.sees(LO, "127.0.0.1:80", "PASS")
			for _, to := range []string{"169.254.169.254", "192.168.0.9", "172.30.0.77"} {
				w.sees(POD, to+":80", "PASS")
			}
			w.sees(EXT, "1.2.3.4:80", "10.180.0.1 +M")
			w.sees(POD, "172.30.0.41:80", "10.180.0.1 -M")
		})
	}
}

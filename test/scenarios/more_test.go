package scenarios

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestNodeAddressInThePodRange: what a node sends from an address of the pods'
// range, such as that of its bridge, counts as a pod's under policy Local, which
// is asked before whether the source is the node's own.
func TestNodeAddressInThePodRange(t *testing.T) {
	w := newWorld(t, dataplane.IPv4)
	w.setAddresses(append(addresses4, addrs("10.180.0.254")...)...)
	w.Add(Service{
		CIP: "172.30.0.42", VIPs: []string{"5.6.7.8"}, NP: 3002, ETPLocal: true,
		Endpoints: []string{"L 10.180.0.2", "R 10.180.1.2"},
	})
	w.Sync()
	w.sees("10.180.0.254", "5.6.7.8:80", "10.180.0.2 10.180.1.2 -M")
	w.sees(NODE, "5.6.7.8:80", "10.180.0.2 10.180.1.2 +M")
}

// TestNodeAddressAndSourceRanges: whether the node itself may use a restricted
// address follows the node's address, without a restart.
func TestNodeAddressAndSourceRanges(t *testing.T) {
	w := newWorld(t, dataplane.IPv4)
	w.setAddresses(append(addresses4, addrs("1.2.3.4")...)...)
	w.Add(Service{CIP: "172.30.0.41", VIPs: []string{"1.2.3.4"}, Ranges: []string{"192.168.0.0/24"}, Endpoints: []string{"L 10.180.0.1"}})
	for _, x := range []struct{ node, want string }{
		{"192.168.0.2", "10.180.0.1 +M"}, {"198.51.100.1", "DROP"}, {"192.168.0.3", "10.180.0.1 +M"},
	} {
		w.Node = node("zone-a", addrs(x.node))
		w.Sync()
		w.sees("1.2.3.4", "1.2.3.4:80", x.want)
	}
}

// TestDetectLocal: each way to recognise the traffic of local pods has the same
// effect. The range of a Node only has its own pods.
func TestDetectLocal(t *testing.T) {
	const name, prefix = "cni0", "cn"
	interfaceName, namePrefix := name, prefix
	for _, c := range []struct {
		settings v1alpha1.DetectLocalSettings
		elsePod  bool // pods of other nodes count too
	}{
		{v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalClusterCIDR, ClusterCIDRs: []string{"fd00::/56", "10.0.0.0/8"}}, true},
		{v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalNodeCIDR}, false},
		{v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalBridgeInterface, Interface: &interfaceName}, true},
		{v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalInterfaceNamePrefix, InterfaceNamePrefix: &namePrefix}, true},
	} {
		t.Run(string(c.settings.Mode), func(t *testing.T) {
			w := newWorld(t, dataplane.IPv4)
			w.Settings.DetectLocal = &c.settings
			w.Node.Spec.PodCIDRs = []string{"fd00:0:0:1::/64", "10.0.0.0/24"}
			w.Add(Service{
				CIP: "172.30.0.42", VIPs: []string{"5.6.7.8"}, NP: 3002, ETPLocal: true,
				Endpoints: []string{"L 10.180.0.2", "R 10.180.1.2"},
			})
			w.Sync()
			const both = "10.180.0.2 10.180.1.2"
			w.sees(POD, "172.30.0.42:80", both+" -M")
			w.sees(POD, "5.6.7.8:80", both+" -M")
			w.sees(POD, "192.168.0.2:3002", both+" -M")
			w.sees(NODE, "172.30.0.42:80", both+" +M")
			w.sees(EXT, "172.30.0.42:80", both+" +M")
			w.sees(NODE, "5.6.7.8:80", both+" +M")
			w.sees(EXT, "5.6.7.8:80", "10.180.0.2 -M")
			// From the bridge, but from another range.
			masquerade := " +M"
			if c.elsePod {
				masquerade = " -M"
			}
			w.sees("10.9.0.1", "172.30.0.42:80", both+masquerade)
		})
	}
}

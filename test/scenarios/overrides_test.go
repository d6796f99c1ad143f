package scenarios

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestWhatPoliciesClose is closed on a node, and open again without them. Nothing else
// changes: what a policy does not mention answers as before.
func TestWhatPoliciesClose(t *testing.T) {
	const (
		external, balanced = "192.168.99.22:80", "5.6.7.8:80"
		nodePort, inside   = "192.168.0.2:3001", "172.30.0.41:80"
	)
	const served = "10.180.0.1 +M"
	open := []when{
		{"NODE EXT", inside, served}, {"EXT BLK", nodePort, served}, {"EXT BLK", external, served}, {"EXT BLK", balanced, served},
	}
	for _, c := range []struct {
		name      string
		overrides v1alpha1.ServiceOverrides
		closed    []when
	}{
		{"node ports", v1alpha1.ServiceOverrides{NodePorts: new(v1alpha1.Disabled)}, []when{{"EXT BLK POD NODE", nodePort, "PASS"}}},
		{"external IPs", v1alpha1.ServiceOverrides{ExternalIPs: new(v1alpha1.Disabled)}, []when{{"EXT BLK POD", external, "PASS"}}},
		{"source ranges", v1alpha1.ServiceOverrides{LoadBalancerSourceRanges: []string{"203.0.113.0/25"}}, []when{{"BLK POD", balanced, "DROP"}}},
		{"a range of one host", v1alpha1.ServiceOverrides{LoadBalancerSourceRanges: []string{"198.51.100.1/32", "2001:db8::/64"}}, []when{{"BLK EXT POD", balanced, "DROP"}}},
		{"all of it", v1alpha1.ServiceOverrides{
			NodePorts: new(v1alpha1.Disabled), ExternalIPs: new(v1alpha1.Disabled), LoadBalancerSourceRanges: []string{"198.51.100.1/32"},
		}, []when{{"EXT BLK", nodePort, "PASS"}, {"EXT BLK", external, "PASS"}, {"EXT BLK", balanced, "DROP"}}},
	} {
		for mode, world := range map[string]func(*testing.T, dataplane.Family) *world{"IPTables": newWorld, "IPVS": newIPVSWorld} {
			t.Run(mode+", "+c.name, func(t *testing.T) {
				w := world(t, dataplane.IPv4)
				w.Add(Service{
					CIP: "172.30.0.41", NP: 3001, XIPs: []string{"192.168.99.22"}, VIPs: []string{"5.6.7.8"}, Endpoints: []string{"R 10.180.0.1"},
				})
				for range 2 { // closed, and opened again
					w.Overrides = nil
					w.Sync()
					w.all(open)
					w.Overrides = &c.overrides
					w.Sync()
					w.all(append(without(open, c.closed), c.closed...))
				}
			})
		}
	}
}

// without are those to other destinations.
func without(all, closed []when) []when {
	var out []when
	for _, one := range all {
		found := false
		for _, c := range closed {
			found = found || c.to == one.to
		}
		if !found {
			out = append(out, one)
		}
	}
	return out
}

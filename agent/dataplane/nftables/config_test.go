package nftables

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestConfig(t *testing.T) {
	node := func(change func(*v1alpha1.ProxySettings)) *dataplane.Node {
		s := &v1alpha1.ProxySettings{}
		if change != nil {
			change(s)
		}
		return &dataplane.Node{
			Settings: v1alpha1.CompleteSettings(s), Addresses: addrs("192.0.2.1"),
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		}
	}
	interfaces := facts{addresses: addrs("127.0.0.1 192.0.2.1 198.51.100.1 2001:db8::1"), liberal: true}
	for name, c := range map[string]struct {
		change    func(*v1alpha1.ProxySettings)
		pods      dataplane.PodTraffic
		nodePorts string
		err       string
	}{
		"defaults": {nil, dataplane.PodTraffic{}, "192.0.2.1 198.51.100.1", ""},
		"cluster ranges": {func(s *v1alpha1.ProxySettings) {
			s.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalClusterCIDR, ClusterCIDRs: []string{"fd00::/64", "10.244.0.1/16"}}
		}, dataplane.PodTraffic{Source: netip.MustParsePrefix("10.244.0.0/16")}, "192.0.2.1 198.51.100.1", ""},
		"a range that is none": {func(s *v1alpha1.ProxySettings) {
			s.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalClusterCIDR, ClusterCIDRs: []string{"x"}}
		}, dataplane.PodTraffic{}, "", "spec.settings.detectLocal.clusterCIDRs[0]"},
		"node range": {func(s *v1alpha1.ProxySettings) {
			s.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalNodeCIDR}
		}, dataplane.PodTraffic{Source: netip.MustParsePrefix("10.244.1.0/24")}, "192.0.2.1 198.51.100.1", ""},
		"interface": {func(s *v1alpha1.ProxySettings) {
			s.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalBridgeInterface, Interface: new("br0")}
		}, dataplane.PodTraffic{Interface: "br0"}, "192.0.2.1 198.51.100.1", ""},
		"interface prefix": {func(s *v1alpha1.ProxySettings) {
			s.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalInterfaceNamePrefix, InterfaceNamePrefix: new("veth")}
		}, dataplane.PodTraffic{Interface: "veth", Prefix: true}, "192.0.2.1 198.51.100.1", ""},
		"primary address": {func(s *v1alpha1.ProxySettings) {
			s.NodePorts = &v1alpha1.NodePortSettings{AddressMode: new(v1alpha1.NodePortsPrimary)}
		}, dataplane.PodTraffic{}, "192.0.2.1", ""},
	} {
		got, err := newConfig(dataplane.IPv4, node(c.change), interfaces)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.pods != c.pods || !slices.Equal(got.nodePortIPs, addrs(c.nodePorts)) || got.mark != 0x4000 || got.dropInvalid || got.nodeIP != netip.MustParseAddr("192.0.2.1") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

package worlds

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// NodeName is the node that both proxies serve.
const NodeName = "parity"

// The addresses that the node has in both namespaces, on bridge nodeBridge.
// The links to the control plane have others, which no drawn range covers.
const (
	nodeBridge = "parity0"
	nodeIPv4   = "192.0.2.10"
	nodeIPv6   = "2001:db8:2::10"
)

// nodeAddresses are the addresses that the node always has.
func nodeAddresses() []string {
	return []string{
		nodeIPv4 + "/24", "192.0.2.77/24", "198.51.100.9/24",
		nodeIPv6 + "/64", "2001:db8:2::77/64", "2001:db8:9::9/64",
	}
}

// guestAddresses come and go.
func guestAddresses() []string { return []string{"192.0.2.150/24", "2001:db8:2::150/64"} }

// Settings are those of a world, in the words that both proxies understand.
type Settings struct {
	detectLocal   v1alpha1.DetectLocalMode
	clusterCIDRs  []string
	interfaceName string // or the prefix
	masqueradeAll bool
	masqueradeBit int32
	nodePorts     v1alpha1.NodePortAddressMode
	nodePortCIDRs []string
	localhost     bool
	Liberal       bool // net.netfilter.nf_conntrack_tcp_be_liberal
	minInterval   int32
	// IPVS are those of mode IPVS; nil: the mode is IPTables, or NFTables.
	IPVS     *IPVS
	NFTables bool
}

// Settings draws proxy settings.
func (d Dice) Settings() Settings {
	s := Settings{
		detectLocal: Pick(d, v1alpha1.DetectLocalNone, v1alpha1.DetectLocalClusterCIDR, v1alpha1.DetectLocalClusterCIDR,
			v1alpha1.DetectLocalNodeCIDR, v1alpha1.DetectLocalBridgeInterface, v1alpha1.DetectLocalInterfaceNamePrefix),
		masqueradeAll: d.Chance(20),
		masqueradeBit: 14,
		nodePorts:     Pick(d, v1alpha1.NodePortsAll, v1alpha1.NodePortsCIDRs, v1alpha1.NodePortsPrimary),
		localhost:     d.Chance(60),
		Liberal:       d.Chance(20),
		minInterval:   Pick[int32](d, 0, 0, 200), // of nodeproxy, in milliseconds
	}
	if d.Chance(30) {
		s.masqueradeBit = int32(d.IntN(32)) //nolint:gosec // it fits
	}
	switch s.detectLocal {
	case v1alpha1.DetectLocalClusterCIDR:
		s.clusterCIDRs = Pick(d,
			[]string{"10.244.0.0/16"}, []string{"fd00:10:244::/56"},
			[]string{"10.244.0.0/16", "fd00:10:244::/56"}, []string{"fd00:10:244::/56", "10.244.0.0/16"})
	case v1alpha1.DetectLocalBridgeInterface:
		s.interfaceName = "cni0"
	case v1alpha1.DetectLocalInterfaceNamePrefix:
		s.interfaceName = Pick(d, "veth", "cali")
	}
	if s.nodePorts == v1alpha1.NodePortsCIDRs {
		s.nodePortCIDRs = some(d, d.Between(1, 3),
			"192.0.2.0/24", nodeIPv4+"/32", "198.51.100.0/24", "203.0.113.0/24", "127.0.0.0/8", "127.0.0.1/32", "0.0.0.0/0",
			"2001:db8:2::/64", "2001:db8:9::9/128", "2001:db8:ffff::/64", "::1/128", "::/0")
	}
	return s
}

// LocalhostInEffect reports whether NodePorts answer on 127.0.0.1.
func (s Settings) LocalhostInEffect(f NodeFacts) bool {
	if !s.localhost {
		return false
	}
	var ranges []netip.Prefix
	switch s.nodePorts {
	case v1alpha1.NodePortsPrimary:
		return !f.has(IPv4)
	case v1alpha1.NodePortsCIDRs:
		for _, text := range s.nodePortCIDRs {
			if p := netip.MustParsePrefix(text); p.Addr().Is4() {
				ranges = append(ranges, p)
			}
		}
	}
	return len(ranges) == 0 || slices.ContainsFunc(ranges, netip.MustParsePrefix("127.0.0.0/8").Overlaps)
}

// ForNodeProxy returns the settings for a NodeProxy. Verification hardly ever
// happens: it would repair what a change left wrong.
func (s Settings) ForNodeProxy() *v1alpha1.ProxySettings {
	toggle := func(on bool) *v1alpha1.Toggle {
		if on {
			return new(v1alpha1.Enabled)
		}
		return new(v1alpha1.Disabled)
	}
	out := &v1alpha1.ProxySettings{
		Conntrack: &v1alpha1.ConntrackSettings{ // as kubeProxy has it
			MaxPerCore: new(int32(0)), TCPEstablishedTimeoutSeconds: new(int32(0)), TCPCloseWaitTimeoutSeconds: new(int32(0)),
		},
		DetectLocal: &v1alpha1.DetectLocalSettings{Mode: s.detectLocal, ClusterCIDRs: s.clusterCIDRs},
		NodePorts: &v1alpha1.NodePortSettings{
			AddressMode: new(s.nodePorts), CIDRs: s.nodePortCIDRs, Localhost: toggle(s.localhost),
		},
		Masquerade: &v1alpha1.MasqueradeSettings{All: toggle(s.masqueradeAll), Bit: new(s.masqueradeBit)},
		Sync: &v1alpha1.SyncSettings{
			MinIntervalMilliseconds: new(s.minInterval), VerifyIntervalSeconds: new(int32(3600)),
		},
	}
	if s.IPVS != nil {
		out.Mode, out.IPVS = new(v1alpha1.ModeIPVS), s.IPVS.nodeproxy(toggle)
	}
	if s.NFTables {
		out.Mode = new(v1alpha1.ModeNFTables)
	}
	switch s.detectLocal {
	case v1alpha1.DetectLocalBridgeInterface:
		out.DetectLocal.Interface = new(s.interfaceName)
	case v1alpha1.DetectLocalInterfaceNamePrefix:
		out.DetectLocal.InterfaceNamePrefix = new(s.interfaceName)
	}
	return out
}

// KubeProxy returns the settings as a configuration file of kube-proxy on a node. It
// takes a minSyncPeriod of 0 for 1 s, and other zeros as they are.
func (s Settings) KubeProxy(kubeconfig, node string) string {
	mode := string(s.detectLocal)
	if s.detectLocal == v1alpha1.DetectLocalNone {
		mode = string(v1alpha1.DetectLocalClusterCIDR) // without any range
	}
	bridge, prefix := "", ""
	switch s.detectLocal {
	case v1alpha1.DetectLocalBridgeInterface:
		bridge = s.interfaceName
	case v1alpha1.DetectLocalInterfaceNamePrefix:
		prefix = s.interfaceName
	}
	addresses := s.nodePortCIDRs
	if s.nodePorts == v1alpha1.NodePortsPrimary {
		addresses = []string{"primary"}
	}
	proxyMode, more := "iptables", ""
	switch {
	case s.IPVS != nil:
		proxyMode, more = "ipvs", s.IPVS.kubeProxy()
	case s.NFTables:
		proxyMode = "nftables"
		more = fmt.Sprintf("nftables: {masqueradeAll: %t, masqueradeBit: %d, minSyncPeriod: 1ms, syncPeriod: 5s}\n", s.masqueradeAll, s.masqueradeBit)
		if len(addresses) == 0 { // which means primary in this mode
			addresses = []string{"0.0.0.0/0", "::/0"}
		}
	}
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clientConnection: {kubeconfig: %q}
hostnameOverride: %s
detectLocalMode: %s
detectLocal: {bridgeInterface: %q, interfaceNamePrefix: %q}
clusterCIDR: %q
nodePortAddresses: [%s]
iptables: {masqueradeAll: %t, masqueradeBit: %d, localhostNodePorts: %t, minSyncPeriod: 1ms, syncPeriod: 5s}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
%s`, proxyMode, kubeconfig, node, mode, bridge, prefix, strings.Join(s.clusterCIDRs, ","), strings.Join(quote(addresses), ", "),
		s.masqueradeAll, s.masqueradeBit, s.localhost, more)
}

// NodeFacts are what a world reports about the node.
type NodeFacts struct {
	addresses []corev1.NodeAddress
	podCIDRs  []string
	zone      string // no label when empty
}

// NodeFacts draws facts of the node.
func (d Dice) NodeFacts() NodeFacts {
	internal := func(ip string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip}
	}
	external := func(ip string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: ip}
	}
	both := []corev1.NodeAddress{internal(nodeIPv4), internal(nodeIPv6)}
	f := NodeFacts{
		addresses: Pick(d, both, both,
			[]corev1.NodeAddress{internal(nodeIPv6), internal(nodeIPv4)},
			[]corev1.NodeAddress{internal(nodeIPv4)},
			[]corev1.NodeAddress{internal(nodeIPv6)},
			[]corev1.NodeAddress{external("198.51.100.9"), internal(nodeIPv4), external("2001:db8:9::9")},
		),
		zone: firstZone,
	}
	// kube-proxy does not start without a range of the node's primary family.
	only := "10.244.50.0/24"
	if f.primary() == nodeIPv6 {
		only = "fd00:10:244:50::/64"
	}
	f.podCIDRs = Pick(d, []string{only},
		[]string{"10.244.50.0/24", "fd00:10:244:50::/64"}, []string{"fd00:10:244:50::/64", "10.244.50.0/24"})
	return f
}

// primary is the first internal address.
func (f NodeFacts) primary() string {
	i := slices.IndexFunc(f.addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP })
	return f.addresses[i].Address
}

// firstZone is the node's until the first change, which gives it another one.
// No hint names it: kube-proxy may miss the zone that its node has when it
// starts (an event that comes before its handler is registered), but no change.
const firstZone = "zone-first"

func (d Dice) zone() string { return Pick(d, "", "zone-a", "zone-a", "zone-b", "zone-c") }

func (f NodeFacts) has(desired Family) bool {
	return slices.ContainsFunc(f.addresses, func(a corev1.NodeAddress) bool {
		return netip.MustParseAddr(a.Address).Is4() == (desired == IPv4)
	})
}

func (f NodeFacts) labels() map[string]string {
	labels := map[string]string{corev1.LabelOSStable: "linux"}
	if f.zone != "" {
		labels[corev1.LabelTopologyZone] = f.zone
	}
	return labels
}

func (f NodeFacts) object() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: NodeName, Labels: f.labels()},
		Spec:       corev1.NodeSpec{PodCIDR: f.podCIDRs[0], PodCIDRs: f.podCIDRs},
		Status:     corev1.NodeStatus{Addresses: f.addresses},
	}
}

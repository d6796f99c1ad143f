package worlds

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// IPVS are settings of mode IPVS.
type IPVS struct {
	Scheduler    string
	StrictARP    bool
	ExcludeCIDRs []string
	// Timeouts in seconds: of TCP, of TCP after a FIN, of UDP.
	Timeouts [3]int32
}

// Schedulers are those that worlds have. All are modules of their own.
func Schedulers() []string { return []string{"rr", "wrr", "lc", "wlc", "sh", "dh", "sed", "nq", "mh"} }

// PlainIPVS are settings for mode IPVS as most clusters have them. Pods are recognized by
// their range.
func PlainIPVS() Settings {
	return Settings{
		detectLocal: v1alpha1.DetectLocalClusterCIDR, clusterCIDRs: []string{"10.244.0.0/16", "fd00:10:244::/48"},
		masqueradeBit: 14, nodePorts: v1alpha1.NodePortsAll, IPVS: &IPVS{Scheduler: "rr"},
	}
}

// ipvsSettings draws settings for mode IPVS. Ranges for node ports that hold
// addresses of Services are left out: kube-proxy takes these for addresses of the
// node once they are bound, so that what it does depends on what was before.
func (d Dice) ipvsSettings() Settings {
	s := d.Settings()
	if s.nodePorts == v1alpha1.NodePortsCIDRs {
		s.nodePortCIDRs = some(d, d.Between(1, 3),
			"192.0.2.0/26", nodeIPv4+"/32", "198.51.100.0/24", "127.0.0.0/8", "127.0.0.1/32", "0.0.0.0/0",
			"2001:db8:2::/122", "2001:db8:9::9/128", "2001:db8:ffff::/64", "::1/128", "::/0")
	}
	s.IPVS = &IPVS{Scheduler: Pick(d, Schedulers()...), StrictARP: d.Chance(40)}
	s.IPVS.ExcludeCIDRs = some(d, d.Between(0, 3), ExcludedRanges()...)
	if d.Chance(40) {
		s.IPVS.Timeouts = [3]int32{int32(d.Between(0, 1) * 1000), int32(d.Between(0, 1) * 70), int32(d.Between(1, 500))} //nolint:gosec // they fit
	}
	return s
}

// ExcludedRanges are ranges that worlds may have as excludeCIDRs. No Service has
// an address in them.
func ExcludedRanges() []string {
	return []string{"203.0.113.192/26", "198.51.100.128/25", "2001:db8:113:1::/64"}
}

func (i *IPVS) nodeproxy(toggle func(bool) *v1alpha1.Toggle) *v1alpha1.IPVSSettings {
	return &v1alpha1.IPVSSettings{
		Scheduler: new(i.Scheduler), StrictARP: toggle(i.StrictARP), ExcludeCIDRs: i.ExcludeCIDRs,
		TCPTimeoutSeconds: new(i.Timeouts[0]), TCPFinTimeoutSeconds: new(i.Timeouts[1]), UDPTimeoutSeconds: new(i.Timeouts[2]),
	}
}

// kubeProxy returns the section of the configuration file. Each sync runs some
// fifty programs, which takes long where the kernel is emulated, so nothing but a
// change is to bring one about. kube-proxy begins with the first of several changes
// unless it has to wait, and then needs another sync; minSyncPeriod is about as long
// as it takes to look at the state and to write the next one.
func (i *IPVS) kubeProxy() string {
	return fmt.Sprintf("ipvs: {scheduler: %q, strictARP: %t, excludeCIDRs: [%s], tcpTimeout: %ds, tcpFinTimeout: %ds, udpTimeout: %ds, minSyncPeriod: 3s, syncPeriod: 1h}\n",
		i.Scheduler, i.StrictARP, strings.Join(quote(i.ExcludeCIDRs), ", "), i.Timeouts[0], i.Timeouts[1], i.Timeouts[2])
}

func quote(words []string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = fmt.Sprintf("%q", w)
	}
	return out
}

// NodePortsNowhere reports whether node ports of a family answer on no address of the
// node: there are ranges of the family, and none holds one.
func (s Settings) NodePortsNowhere(f Family) bool {
	var ranges []netip.Prefix
	for _, text := range s.nodePortCIDRs {
		if p := netip.MustParsePrefix(text); p.Addr().Is4() == (f == IPv4) {
			ranges = append(ranges, p)
		}
	}
	return len(ranges) > 0 && !slices.ContainsFunc(append(nodeAddresses(), guestAddresses()...), func(text string) bool {
		a := netip.MustParsePrefix(text).Addr()
		return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

// Local reports whether an address is that of an endpoint on the node, in any state.
func (s *Service) Local(address string) bool {
	e := s.endpoints[address]
	return e != nil && e.NodeName != nil && *e.NodeName == NodeName
}

// OnlyCluster gives all Services the policies Cluster, so that kube-proxy does all that
// nodeproxy does.
func (w *World) OnlyCluster() {
	for _, s := range w.Services {
		spec := &s.Object.Spec
		if spec.InternalTrafficPolicy != nil {
			spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
		}
		if spec.ExternalTrafficPolicy != "" {
			spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		}
		spec.HealthCheckNodePort = 0
	}
}

package kubeproxy

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// translation carries the configuration of a kube-proxy over to settings.
type translation struct {
	*config
	settings *v1alpha1.ProxySettings
	defaults proxyv1alpha1.KubeProxyConfiguration
}

// translate returns the settings of a kube-proxy, all explicit. What is lost is in the
// configuration's notes.
func translate(c *config) *v1alpha1.ProxySettings {
	t := &translation{config: c, settings: &v1alpha1.ProxySettings{}}
	setDefaults(&t.defaults)
	t.defaults.Mode = c.Mode
	platformDefaults(&t.defaults)
	for _, f := range Fields() {
		if f.carry == nil || !slices.ContainsFunc(f.Paths, t.applies) {
			continue
		}
		before := t.settings.DeepCopy()
		f.carry(t)
		if errs := v1alpha1.ValidateSettings(v1alpha1.CompleteSettings(t.settings)); len(errs) > 0 {
			t.settings = before
			changed := t.changed(f.Paths)
			if len(changed) == 0 { // a default of kube-proxy's that nodeproxy does not accept
				changed = f.Paths[:1]
			}
			for _, path := range changed {
				t.lose("settings", "%s %s: %s", t.source(path), t.value(path), errs[0].Detail)
			}
		}
	}
	return v1alpha1.CompleteSettings(t.settings)
}

// applies reports whether kube-proxy uses a field in its mode.
func (t *translation) applies(path string) bool {
	of, _, _ := strings.Cut(path, ".")
	switch of {
	case "ipvs", "nftables":
		return string(t.Mode) == of
	case "iptables":
		return t.Mode != "nftables" || path == "iptables.localhostNodePorts" // which shares an object with nodePortAddresses
	}
	return true
}

// changed returns the paths whose values are used and are not kube-proxy's default.
func (t *translation) changed(paths []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool {
		if !t.applies(path) {
			return true
		}
		a, _ := valueAt(reflect.ValueOf(&t.KubeProxyConfiguration), path)
		b, _ := valueAt(reflect.ValueOf(&t.defaults), path)
		return reflect.DeepEqual(a.Interface(), b.Interface())
	})
}

// value prints a value for a message.
func (t *translation) value(path string) string {
	v, _ := valueAt(reflect.ValueOf(&t.KubeProxyConfiguration), path)
	text := fmt.Sprint(deref(v).Interface())
	if d, is := reflect.TypeAssert[metav1.Duration](deref(v)); is {
		text = d.Duration.String()
	}
	return fmt.Sprintf("%q", clip(text))
}

// loseValue records that the value of a field is lost.
func (t *translation) loseValue(at, path, why string) {
	t.lose(at, "%s %s: %s", t.source(path), t.value(path), why)
}

// why returns the explanation of the table.
func why(path string) string {
	for _, f := range Fields() {
		if slices.Contains(f.Paths, path) {
			return f.Why
		}
	}
	return ""
}

func (t *translation) mode() {
	mode, known := map[proxyv1alpha1.ProxyMode]v1alpha1.ProxyMode{
		"iptables": v1alpha1.ModeIPTables, "ipvs": v1alpha1.ModeIPVS, "nftables": v1alpha1.ModeNFTables,
		"userspace": v1alpha1.ModeUserspace, // until 1.25
	}[t.Mode]
	if !known {
		t.loseValue("settings", "mode", "use iptables, ipvs or nftables")
		return
	}
	t.settings.Mode = &mode
}

func (t *translation) detectLocal() {
	d := &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalMode(t.DetectLocalMode)}
	switch d.Mode {
	case v1alpha1.DetectLocalClusterCIDR:
		d.ClusterCIDRs = cidrs(strings.Split(t.ClusterCIDR, ","))
		if len(d.ClusterCIDRs) == 0 {
			d.Mode = v1alpha1.DetectLocalNone
			t.explain("settings.detectLocal", "without clusterCIDR, kube-proxy treats pods like other clients")
		}
	case v1alpha1.DetectLocalBridgeInterface:
		d.Interface = new(t.DetectLocal.BridgeInterface)
	case v1alpha1.DetectLocalInterfaceNamePrefix:
		d.InterfaceNamePrefix = new(t.DetectLocal.InterfaceNamePrefix)
	}
	t.settings.DetectLocal = d
}

// cidrs returns ranges without host bits, empty entries and leading zeros, which kube-proxy
// ignores. Others are not changed: validation names them.
func cidrs(list []string) []string {
	var out []string
	for _, text := range list {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		if _, parsed, err := netutils.ParseCIDRSloppy(text); err == nil {
			text = parsed.String()
		}
		out = append(out, text)
	}
	return out
}

// The most ranges that the API permits.
const (
	mostNodePortRanges = 32
	mostExcludedRanges = 64
)

func (t *translation) nodePortAddresses() {
	list := cidrs(t.NodePortAddresses)
	n := &v1alpha1.NodePortSettings{AddressMode: new(v1alpha1.NodePortsAll)}
	switch {
	case len(list) > mostNodePortRanges:
		t.lose("settings", "%s: %d ranges, more than %d", t.source("nodePortAddresses"), len(list), mostNodePortRanges)
		return
	case slices.Equal(list, []string{primary}):
		n.AddressMode = new(v1alpha1.NodePortsPrimary)
	case len(list) > 0:
		n.AddressMode, n.CIDRs = new(v1alpha1.NodePortsCIDRs), list
	}
	t.settings.NodePorts = n
}

func (t *translation) localhost() {
	if t.settings.NodePorts == nil {
		t.settings.NodePorts = &v1alpha1.NodePortSettings{}
	}
	t.settings.NodePorts.Localhost = toggle(*t.IPTables.LocalhostNodePorts)
}

func toggle(on bool) *v1alpha1.Toggle {
	if on {
		return new(v1alpha1.Enabled)
	}
	return new(v1alpha1.Disabled)
}

func (t *translation) masquerade() *v1alpha1.MasqueradeSettings {
	if t.settings.Masquerade == nil {
		t.settings.Masquerade = &v1alpha1.MasqueradeSettings{}
	}
	return t.settings.Masquerade
}

func (t *translation) masqueradeAll() {
	all := t.IPTables.MasqueradeAll
	if t.Mode == "nftables" {
		all = t.NFTables.MasqueradeAll
	}
	t.masquerade().All = toggle(all)
}

func (t *translation) masqueradeBit() {
	bit := *t.IPTables.MasqueradeBit
	if t.Mode == "nftables" {
		bit = *t.NFTables.MasqueradeBit
	}
	t.masquerade().Bit = &bit
}

func (t *translation) minSyncPeriod() {
	path, period := "iptables.minSyncPeriod", t.IPTables.MinSyncPeriod.Duration
	switch t.Mode {
	case "ipvs":
		path, period = "ipvs.minSyncPeriod", t.IPVS.MinSyncPeriod.Duration
	case "nftables":
		path, period = "nftables.minSyncPeriod", t.NFTables.MinSyncPeriod.Duration
	}
	milliseconds := period.Milliseconds()
	if milliseconds > math.MaxInt32 {
		t.loseValue("settings", path, "longer than 24 days")
		return
	}
	s := &v1alpha1.SyncSettings{MinIntervalMilliseconds: new(int32(milliseconds))}
	defaults := v1alpha1.CompleteSettings(nil).Sync
	if verify := *defaults.VerifyIntervalSeconds; period > time.Duration(verify)*time.Second {
		s.VerifyIntervalSeconds = new(int32((period + time.Second - 1) / time.Second))
	}
	t.settings.Sync = s
	t.explain("settings.sync.minIntervalMilliseconds", "kube-proxy's minSyncPeriod; nodeproxy's default is %d", *defaults.MinIntervalMilliseconds)
}

func (t *translation) ipvs() *v1alpha1.IPVSSettings {
	if t.settings.IPVS == nil {
		t.settings.IPVS = &v1alpha1.IPVSSettings{}
	}
	return t.settings.IPVS
}

func (t *translation) scheduler() {
	t.ipvs().Scheduler = new(cmp.Or(t.KubeProxyConfiguration.IPVS.Scheduler, "rr"))
}

func (t *translation) excludeCIDRs() {
	list := cidrs(t.IPVS.ExcludeCIDRs)
	if len(list) > mostExcludedRanges {
		t.lose("settings", "%s: %d ranges, more than %d", t.source("ipvs.excludeCIDRs"), len(list), mostExcludedRanges)
		return
	}
	t.ipvs().ExcludeCIDRs = list
}

func (t *translation) strictARP() { t.ipvs().StrictARP = toggle(t.IPVS.StrictARP) }

func (t *translation) ipvsTCPTimeout() {
	t.seconds(&t.ipvs().TCPTimeoutSeconds, "ipvs.tcpTimeout", t.IPVS.TCPTimeout)
}

func (t *translation) ipvsTCPFinTimeout() {
	t.seconds(&t.ipvs().TCPFinTimeoutSeconds, "ipvs.tcpFinTimeout", t.IPVS.TCPFinTimeout)
}

func (t *translation) ipvsUDPTimeout() {
	t.seconds(&t.ipvs().UDPTimeoutSeconds, "ipvs.udpTimeout", t.IPVS.UDPTimeout)
}

// seconds sets a timeout. Like kube-proxy, it ignores fractions of seconds.
func (t *translation) seconds(field **int32, path string, value metav1.Duration) {
	switch seconds := int64(value.Duration / time.Second); {
	case seconds > math.MaxInt32:
		t.loseValue("settings", path, "too long")
	case value.Duration < 0:
		t.loseValue("settings", path, "must not be negative")
	case seconds == 0 && value.Duration > 0:
		t.loseValue("settings", path, "shorter than a second")
	default:
		*field = new(int32(seconds))
	}
}

func (t *translation) conntrack() *v1alpha1.ConntrackSettings {
	if t.settings.Conntrack == nil {
		t.settings.Conntrack = &v1alpha1.ConntrackSettings{}
	}
	return t.settings.Conntrack
}

func (t *translation) maxPerCore() { t.conntrack().MaxPerCore = t.Conntrack.MaxPerCore }

func (t *translation) conntrackMin() { t.conntrack().Min = t.Conntrack.Min }

func (t *translation) tcpEstablished() {
	t.seconds(&t.conntrack().TCPEstablishedTimeoutSeconds, "conntrack.tcpEstablishedTimeout", *t.Conntrack.TCPEstablishedTimeout)
}

func (t *translation) tcpCloseWait() {
	t.seconds(&t.conntrack().TCPCloseWaitTimeoutSeconds, "conntrack.tcpCloseWaitTimeout", *t.Conntrack.TCPCloseWaitTimeout)
}

func (t *translation) udpTimeout() {
	t.seconds(&t.conntrack().UDPTimeoutSeconds, "conntrack.udpTimeout", t.Conntrack.UDPTimeout)
}

func (t *translation) udpStreamTimeout() {
	t.seconds(&t.conntrack().UDPStreamTimeoutSeconds, "conntrack.udpStreamTimeout", t.Conntrack.UDPStreamTimeout)
}

func (t *translation) tcpBeLiberal() { t.conntrack().TCPBeLiberal = toggle(t.Conntrack.TCPBeLiberal) }

func (t *translation) hostname() {
	name := strings.ToLower(strings.TrimSpace(t.HostnameOverride))
	if name != "" && !strings.EqualFold(name, nodeName) && name != t.node {
		t.loseValue("settings", "hostnameOverride", why("hostnameOverride"))
	}
}

func (t *translation) bindAddress() {
	if ip := netutils.ParseIPSloppy(t.BindAddress); ip == nil || !ip.IsUnspecified() {
		t.loseValue("settings", "bindAddress", why("bindAddress"))
	}
}

func (t *translation) healthz() {
	t.server("healthzBindAddress", t.HealthzBindAddress, "10256", net.IP.IsUnspecified)
}

func (t *translation) metrics() {
	t.server("metricsBindAddress", t.MetricsBindAddress, "10249", net.IP.IsLoopback)
}

// server reports an address that is not the agent's.
func (t *translation) server(path, address, port string, same func(net.IP) bool) {
	host, actual, err := net.SplitHostPort(address)
	if ip := netutils.ParseIPSloppy(host); t.disabled[path] || err != nil || actual != port || ip == nil || !same(ip) {
		t.loseValue("agent", path, why(path))
	}
}

// serviceGates are the feature gates that change how Services are proxied on Linux, in
// Kubernetes 1.31 or newer. With nodeproxy, all are on.
func serviceGates() []string {
	return []string{"AllowServiceExternalIPs", "KubeProxyDrainingTerminatingNodes", "LoadBalancerIPMode", "NFTablesProxyMode",
		"PreferSameTrafficDistribution", "ServiceTrafficDistribution", "TopologyAwareHints"}
}

func (t *translation) featureGates() {
	for _, name := range slices.Sorted(maps.Keys(t.FeatureGates)) {
		if !t.FeatureGates[name] && slices.Contains(serviceGates(), name) {
			t.lose("settings", "%s %s=false: %s", t.source("featureGates"), name, why("featureGates"))
		}
	}
}

func (t *translation) profiling() {
	if t.EnableProfiling {
		t.loseValue("agent", "enableProfiling", why("enableProfiling"))
	}
}

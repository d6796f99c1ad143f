package v1alpha1

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// interfaceNames are the interface names that Linux accepts, apart from their length.
var interfaceNames = regexp.MustCompile(`^[A-Za-z0-9_.@-]+$`)

// minVerifySeconds is the minimum interval between verifications of the kernel.
const minVerifySeconds = 5

// IPVSSchedulers returns Linux's IPVS schedulers, by the kernel's names.
func IPVSSchedulers() []string {
	return []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "twos"}
}

// ValidateSettings checks complete settings, as returned by CompleteSettings, and names each
// invalid field below spec.settings. It covers what the API server cannot reject: objects
// stored before a rule existed, settings that are invalid only in combination, and manual edits
// of rendered objects. The controller renders, and agents accept, only settings that pass.
func ValidateSettings(s *ProxySettings) field.ErrorList {
	v := &validator{}
	root := field.NewPath("spec", "settings")
	oneOf(v, root.Child("mode"), *s.Mode, ModeIPTables, ModeIPVS)
	oneOf(v, root.Child("fallback"), *s.Fallback, FallbackNone, FallbackIPTables)
	oneOf(v, root.Child("enforcement"), *s.Enforcement, Enforce, Audit)
	v.detectLocal(root.Child("detectLocal"), s.DetectLocal)
	v.nodePorts(root.Child("nodePorts"), s.NodePorts)
	v.masquerade(root.Child("masquerade"), s.Masquerade)
	v.ipvs(root.Child("ipvs"), s.IPVS)
	v.sync(root.Child("sync"), s.Sync)
	v.conntrack(root.Child("conntrack"), s.Conntrack)
	return v.errs
}

// validator collects errors.
type validator struct {
	errs field.ErrorList
}

func (v *validator) invalid(at *field.Path, value any, format string, args ...any) {
	v.errs = append(v.errs, field.Invalid(at, value, fmt.Sprintf(format, args...)))
}

func oneOf[T ~string](v *validator, at *field.Path, value T, valid ...T) {
	if !slices.Contains(valid, value) {
		v.errs = append(v.errs, field.NotSupported(at, value, valid))
	}
}

func (v *validator) toggle(at *field.Path, value *Toggle) {
	oneOf(v, at, *value, Enabled, Disabled)
}

func (v *validator) notNegative(at *field.Path, value *int32) {
	if *value < 0 {
		v.invalid(at, *value, "must not be negative")
	}
}

// cidrs checks each entry and returns the valid ones.
func (v *validator) cidrs(at *field.Path, cidrs []string) []netip.Prefix {
	var out []netip.Prefix
	for i, s := range cidrs {
		prefix, err := netip.ParsePrefix(s)
		if err != nil || prefix.Addr().Is4In6() {
			v.invalid(at.Index(i), s, "must be a CIDR such as 10.244.0.0/16 or fd00:10:244::/56")
			continue
		}
		out = append(out, prefix)
	}
	return out
}

// member checks that a union's member is set with its mode, and only with it.
func (v *validator) member(at *field.Path, given bool, mode, want string) {
	switch {
	case mode == want && !given:
		v.errs = append(v.errs, field.Required(at, "required with mode "+want))
	case mode != want && given:
		v.errs = append(v.errs, field.Forbidden(at, "only valid with mode "+want+", not "+mode))
	}
}

func (v *validator) detectLocal(at *field.Path, d *DetectLocalSettings) {
	oneOf(v, at.Child("mode"), d.Mode, DetectLocalClusterCIDR, DetectLocalNodeCIDR,
		DetectLocalBridgeInterface, DetectLocalInterfaceNamePrefix, DetectLocalNone)
	mode := string(d.Mode)
	v.member(at.Child("clusterCIDRs"), len(d.ClusterCIDRs) > 0, mode, string(DetectLocalClusterCIDR))
	v.member(at.Child("interface"), d.Interface != nil, mode, string(DetectLocalBridgeInterface))
	v.member(at.Child("interfaceNamePrefix"), d.InterfaceNamePrefix != nil, mode, string(DetectLocalInterfaceNamePrefix))
	seen := map[bool]bool{} // by whether it is IPv4
	for _, prefix := range v.cidrs(at.Child("clusterCIDRs"), d.ClusterCIDRs) {
		family := prefix.Addr().Is4()
		if seen[family] {
			v.invalid(at.Child("clusterCIDRs"), d.ClusterCIDRs, "must contain at most one CIDR per IP family")
		}
		seen[family] = true
		if prefix.Bits() == 0 {
			v.invalid(at.Child("clusterCIDRs"), d.ClusterCIDRs,
				"must not contain %s, which would treat every client as a pod: set the pods' actual ranges, or mode None with masquerade.all Enabled", prefix)
		}
	}
	v.interfaceName(at.Child("interface"), d.Interface, 15)
	v.interfaceName(at.Child("interfaceNamePrefix"), d.InterfaceNamePrefix, 14)
}

// interfaceName checks that Linux accepts the name, or a prefix of names, of an interface.
func (v *validator) interfaceName(at *field.Path, name *string, longest int) {
	if name != nil && (len(*name) > longest || !interfaceNames.MatchString(*name)) {
		v.invalid(at, *name, "must be 1 to %d letters, digits and _ . @ - only", longest)
	}
}

func (v *validator) nodePorts(at *field.Path, n *NodePortSettings) {
	oneOf(v, at.Child("addressMode"), *n.AddressMode, NodePortsAll, NodePortsPrimary, NodePortsCIDRs)
	v.member(at.Child("cidrs"), len(n.CIDRs) > 0, string(*n.AddressMode), string(NodePortsCIDRs))
	v.cidrs(at.Child("cidrs"), n.CIDRs)
	v.toggle(at.Child("localhost"), n.Localhost)
}

func (v *validator) masquerade(at *field.Path, m *MasqueradeSettings) {
	v.toggle(at.Child("all"), m.All)
	if *m.Bit < 0 || *m.Bit > 31 {
		v.invalid(at.Child("bit"), *m.Bit, "must be 0 to 31")
	}
}

func (v *validator) ipvs(at *field.Path, i *IPVSSettings) {
	oneOf(v, at.Child("scheduler"), *i.Scheduler, IPVSSchedulers()...)
	v.toggle(at.Child("strictARP"), i.StrictARP)
	v.cidrs(at.Child("excludeCIDRs"), i.ExcludeCIDRs)
	v.notNegative(at.Child("tcpTimeoutSeconds"), i.TCPTimeoutSeconds)
	v.notNegative(at.Child("tcpFinTimeoutSeconds"), i.TCPFinTimeoutSeconds)
	v.notNegative(at.Child("udpTimeoutSeconds"), i.UDPTimeoutSeconds)
}

func (v *validator) sync(at *field.Path, s *SyncSettings) {
	v.notNegative(at.Child("minIntervalMilliseconds"), s.MinIntervalMilliseconds)
	verify := at.Child("verifyIntervalSeconds")
	switch {
	case *s.VerifyIntervalSeconds < minVerifySeconds:
		v.invalid(verify, *s.VerifyIntervalSeconds, "must be at least %d", minVerifySeconds)
	case int64(*s.VerifyIntervalSeconds)*1000 < int64(*s.MinIntervalMilliseconds):
		v.invalid(verify, *s.VerifyIntervalSeconds, "must not be shorter than minIntervalMilliseconds (%d)", *s.MinIntervalMilliseconds)
	}
}

func (v *validator) conntrack(at *field.Path, c *ConntrackSettings) {
	v.notNegative(at.Child("maxPerCore"), c.MaxPerCore)
	v.notNegative(at.Child("min"), c.Min)
	v.notNegative(at.Child("tcpEstablishedTimeoutSeconds"), c.TCPEstablishedTimeoutSeconds)
	v.notNegative(at.Child("tcpCloseWaitTimeoutSeconds"), c.TCPCloseWaitTimeoutSeconds)
	v.notNegative(at.Child("udpTimeoutSeconds"), c.UDPTimeoutSeconds)
	v.notNegative(at.Child("udpStreamTimeoutSeconds"), c.UDPStreamTimeoutSeconds)
	v.toggle(at.Child("tcpBeLiberal"), c.TCPBeLiberal)
}

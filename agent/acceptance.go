package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// refusal is why this agent does not do what its NodeProxyRules say.
type refusal struct {
	reason  string // of condition Accepted
	message string
}

// meanwhile ends every message of a refusal.
const meanwhile = "meanwhile the rules on this node stay as they are and nothing is written"

// accept says why the agent cannot do what the object says, or nil.
func accept(object *v1alpha1.NodeProxyRules) *refusal {
	if !formatKnown(object.Spec.FormatVersion) {
		return &refusal{v1alpha1.ReasonUnknownFormat, fmt.Sprintf(
			"spec.formatVersion %d is not known to this agent, which knows 1 to %d: upgrade the agent; %s",
			object.Spec.FormatVersion, v1alpha1.FormatVersion, meanwhile)}
	}
	settings := v1alpha1.CompleteSettings(&object.Spec.Settings)
	if problem := invalid(settings); problem != "" {
		return &refusal{v1alpha1.ReasonInvalid, fmt.Sprintf(
			"spec.settings.%s; correct it in the NodeProxy (hand edits of this object are reverted); %s", problem, meanwhile)}
	}
	switch {
	case *settings.Enforcement != v1alpha1.Enforce:
		return unsupported("spec.settings.enforcement", string(*settings.Enforcement), string(v1alpha1.Enforce))
	case *settings.Mode != v1alpha1.ModeIPTables:
		return unsupported("spec.settings.mode", string(*settings.Mode), string(v1alpha1.ModeIPTables))
	}
	return nil
}

func unsupported(field, value, instead string) *refusal {
	return &refusal{v1alpha1.ReasonUnsupported, fmt.Sprintf(
		"%s: %s is not supported by this release of the agent: set it to %s in the NodeProxy; %s", field, value, instead, meanwhile)}
}

// invalid says which of the complete settings makes no sense, beginning with
// the field's name, or nothing. The controller validates what people write;
// this catches hand edits of the rendered object.
func invalid(s *v1alpha1.ProxySettings) string {
	for _, check := range []func(*v1alpha1.ProxySettings) string{
		invalidEnums, invalidDetectLocal, invalidNodePorts, invalidNumbers,
	} {
		if problem := check(s); problem != "" {
			return problem
		}
	}
	return ""
}

func invalidEnums(s *v1alpha1.ProxySettings) string {
	toggles := []struct {
		field string
		value v1alpha1.Toggle
	}{
		{"nodePorts.localhost", *s.NodePorts.Localhost}, {"masquerade.all", *s.Masquerade.All},
		{"ipvs.strictARP", *s.IPVS.StrictARP}, {"conntrack.tcpBeLiberal", *s.Conntrack.TCPBeLiberal},
	}
	for _, t := range toggles {
		if problem := oneOf(t.field, t.value, v1alpha1.Enabled, v1alpha1.Disabled); problem != "" {
			return problem
		}
	}
	if problem := oneOf("mode", *s.Mode, v1alpha1.ModeIPTables, v1alpha1.ModeIPVS); problem != "" {
		return problem
	}
	if problem := oneOf("fallback", *s.Fallback, v1alpha1.FallbackNone, v1alpha1.FallbackIPTables); problem != "" {
		return problem
	}
	return oneOf("enforcement", *s.Enforcement, v1alpha1.Enforce, v1alpha1.Audit)
}

func oneOf[T ~string](field string, value T, allowed ...T) string {
	if slices.Contains(allowed, value) {
		return ""
	}
	return fmt.Sprintf("%s: %q is none of %v", field, value, allowed)
}

func invalidDetectLocal(s *v1alpha1.ProxySettings) string {
	d := s.DetectLocal
	switch d.Mode {
	case v1alpha1.DetectLocalClusterCIDR:
		if len(d.ClusterCIDRs) == 0 {
			return "detectLocal.clusterCIDRs: at least one is needed with mode ClusterCIDR"
		}
		seen := map[dataplane.Family]bool{}
		for i, text := range d.ClusterCIDRs {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				return fmt.Sprintf("detectLocal.clusterCIDRs[%d]: %q is not a CIDR", i, text)
			}
			family := familyOf(prefix.Addr())
			if seen[family] {
				return fmt.Sprintf("detectLocal.clusterCIDRs: more than one of family %s", family)
			}
			seen[family] = true
		}
	case v1alpha1.DetectLocalBridgeInterface:
		if d.Interface == nil || !interfaceName(*d.Interface) {
			return "detectLocal.interface: the name of an interface is needed with mode BridgeInterface"
		}
	case v1alpha1.DetectLocalInterfaceNamePrefix:
		if d.InterfaceNamePrefix == nil || !interfaceName(*d.InterfaceNamePrefix) {
			return "detectLocal.interfaceNamePrefix: the beginning of interface names is needed with mode InterfaceNamePrefix"
		}
	case v1alpha1.DetectLocalNodeCIDR, v1alpha1.DetectLocalNone:
	default:
		return fmt.Sprintf("detectLocal.mode: %q is not a mode", d.Mode)
	}
	return ""
}

// interfaceName reports whether s can stand in a rule as an interface's name
// or its beginning.
func interfaceName(s string) bool {
	if s == "" || len(s) > 15 {
		return false
	}
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f || c == '/' || c == '"' || c == '\'' || c == '\\' {
			return false
		}
	}
	return true
}

func familyOf(a netip.Addr) dataplane.Family {
	if dataplane.IPv4.Of(a) {
		return dataplane.IPv4
	}
	return dataplane.IPv6
}

func invalidNodePorts(s *v1alpha1.ProxySettings) string {
	mode := *s.NodePorts.AddressMode
	if problem := oneOf("nodePorts.addressMode", mode, v1alpha1.NodePortsAll, v1alpha1.NodePortsPrimary, v1alpha1.NodePortsCIDRs); problem != "" {
		return problem
	}
	if mode == v1alpha1.NodePortsCIDRs && len(s.NodePorts.CIDRs) == 0 {
		return "nodePorts.cidrs: at least one is needed with addressMode CIDRs"
	}
	for i, text := range s.NodePorts.CIDRs {
		if _, err := netip.ParsePrefix(text); err != nil {
			return fmt.Sprintf("nodePorts.cidrs[%d]: %q is not a CIDR", i, text)
		}
	}
	return ""
}

func invalidNumbers(s *v1alpha1.ProxySettings) string {
	if bit := *s.Masquerade.Bit; bit < 0 || bit > 31 {
		return fmt.Sprintf("masquerade.bit: %d is not 0 to 31", bit)
	}
	counts := []struct {
		field string
		value int32
	}{
		{"sync.minIntervalMilliseconds", *s.Sync.MinIntervalMilliseconds},
		{"ipvs.tcpTimeoutSeconds", *s.IPVS.TCPTimeoutSeconds},
		{"ipvs.tcpFinTimeoutSeconds", *s.IPVS.TCPFinTimeoutSeconds},
		{"ipvs.udpTimeoutSeconds", *s.IPVS.UDPTimeoutSeconds},
		{"conntrack.maxPerCore", *s.Conntrack.MaxPerCore},
		{"conntrack.min", *s.Conntrack.Min},
		{"conntrack.tcpEstablishedTimeoutSeconds", *s.Conntrack.TCPEstablishedTimeoutSeconds},
		{"conntrack.tcpCloseWaitTimeoutSeconds", *s.Conntrack.TCPCloseWaitTimeoutSeconds},
		{"conntrack.udpTimeoutSeconds", *s.Conntrack.UDPTimeoutSeconds},
		{"conntrack.udpStreamTimeoutSeconds", *s.Conntrack.UDPStreamTimeoutSeconds},
	}
	for _, c := range counts {
		if c.value < 0 {
			return fmt.Sprintf("%s: %d is negative", c.field, c.value)
		}
	}
	minimum, verify := intervals(s)
	if verify < 5*time.Second {
		return fmt.Sprintf("sync.verifyIntervalSeconds: %d is below 5", *s.Sync.VerifyIntervalSeconds)
	}
	if verify < minimum {
		return fmt.Sprintf("sync.verifyIntervalSeconds: %v is below minIntervalMilliseconds, %v", verify, minimum)
	}
	return ""
}

// intervals returns the least pause between syncs and that between
// verifications.
func intervals(s *v1alpha1.ProxySettings) (minimum, verify time.Duration) {
	return time.Duration(*s.Sync.MinIntervalMilliseconds) * time.Millisecond,
		time.Duration(*s.Sync.VerifyIntervalSeconds) * time.Second
}

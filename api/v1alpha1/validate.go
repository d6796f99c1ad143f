package v1alpha1

import (
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"

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
	oneOf(v, root.Child("mode"), *s.Mode, ModeIPTables, ModeIPVS, ModeNFTables, ModeUserspace)
	oneOf(v, root.Child("fallback"), *s.Fallback, FallbackNone, FallbackIPTables, FallbackNFTables)
	oneOf(v, root.Child("enforcement"), *s.Enforcement, Enforce, Audit)
	v.detectLocal(root.Child("detectLocal"), s.DetectLocal)
	v.nodePorts(root.Child("nodePorts"), s.NodePorts)
	v.masquerade(root.Child("masquerade"), s.Masquerade)
	v.ipvs(root.Child("ipvs"), s.IPVS)
	v.userspace(root.Child("userspace"), s.Userspace)
	v.sync(root.Child("sync"), s.Sync)
	v.byType(root, reflect.ValueOf(s).Elem())
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

// byType checks the fields whose type decides what is valid: toggles, and numbers, none of which may be
// negative. A narrower limit has been reported before.
func (v *validator) byType(at *field.Path, s reflect.Value) {
	for i := range s.NumField() {
		name, _, _ := strings.Cut(s.Type().Field(i).Tag.Get("json"), ",")
		at, value := at.Child(name), s.Field(i)
		switch pointer := value.Interface().(type) {
		case *Toggle:
			oneOf(v, at, *pointer, Enabled, Disabled)
		case *int32:
			if *pointer < 0 && !slices.ContainsFunc(v.errs, func(e *field.Error) bool { return e.Field == at.String() }) {
				v.invalid(at, *pointer, "must not be negative")
			}
		default:
			if value.Kind() == reflect.Pointer && value.Elem().Kind() == reflect.Struct {
				v.byType(at, value.Elem())
			}
		}
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

// unionField checks that a union's field is set with its mode, and only with it.
func (v *validator) unionField(at *field.Path, given bool, mode, want string) {
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
	v.unionField(at.Child("clusterCIDRs"), len(d.ClusterCIDRs) > 0, mode, string(DetectLocalClusterCIDR))
	v.unionField(at.Child("interface"), d.Interface != nil, mode, string(DetectLocalBridgeInterface))
	v.unionField(at.Child("interfaceNamePrefix"), d.InterfaceNamePrefix != nil, mode, string(DetectLocalInterfaceNamePrefix))
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
	v.unionField(at.Child("cidrs"), len(n.CIDRs) > 0, string(*n.AddressMode), string(NodePortsCIDRs))
	v.cidrs(at.Child("cidrs"), n.CIDRs)
}

func (v *validator) masquerade(at *field.Path, m *MasqueradeSettings) {
	if *m.Bit < 0 || *m.Bit > 31 {
		v.invalid(at.Child("bit"), *m.Bit, "must be 0 to 31")
	}
}

func (v *validator) ipvs(at *field.Path, i *IPVSSettings) {
	oneOf(v, at.Child("scheduler"), *i.Scheduler, IPVSSchedulers()...)
	v.cidrs(at.Child("excludeCIDRs"), i.ExcludeCIDRs)
}

func (v *validator) userspace(at *field.Path, u *UserspaceSettings) {
	v.positive(at.Child("connectTimeoutMilliseconds"), *u.ConnectTimeoutMilliseconds)
	v.positive(at.Child("maxConnections"), *u.MaxConnections)
	v.positive(at.Child("maxConnectionsPerPort"), *u.MaxConnectionsPerPort)
}

func (v *validator) positive(at *field.Path, value int32) {
	if value < 1 {
		v.invalid(at, value, "must be at least 1")
	}
}

func (v *validator) sync(at *field.Path, s *SyncSettings) {
	verify := at.Child("verifyIntervalSeconds")
	switch {
	case *s.VerifyIntervalSeconds < minVerifySeconds:
		v.invalid(verify, *s.VerifyIntervalSeconds, "must be at least %d", minVerifySeconds)
	case int64(*s.VerifyIntervalSeconds)*1000 < int64(*s.MinIntervalMilliseconds):
		v.invalid(verify, *s.VerifyIntervalSeconds, "must not be shorter than minIntervalMilliseconds (%d)", *s.MinIntervalMilliseconds)
	}
}

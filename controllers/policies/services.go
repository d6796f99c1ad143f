package policies

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Bounds of overrides, as in the API.
const (
	maxSourceRanges    = 256
	maxAffinitySeconds = 86400
)

// wholeOverrides are the overrides of more than one field that are set as a whole.
func wholeOverrides() map[string]bool { return map[string]bool{"sessionAffinity": true} }

// ServicePolicy is the part of a policy for Services that decides how they are proxied.
type ServicePolicy struct {
	Name     string
	Priority int32
	// Namespaces selects Namespaces, and Services Services in these, by their labels.
	Namespaces, Services labels.Selector
	// Overrides are those that the policy sets; nil fields are left to others.
	Overrides *v1alpha1.ServiceOverrides
}

// Selects reports whether the policy selects a Service with these labels in a Namespace with those.
// A policy with an invalid selector selects none.
func (p *ServicePolicy) Selects(namespaceLabels, serviceLabels map[string]string) bool {
	return p.Services != nil && p.Namespaces != nil &&
		p.Services.Matches(labels.Set(serviceLabels)) && p.Namespaces.Matches(labels.Set(namespaceLabels))
}

// Retains reports whether a Service with these labels in a Namespace with those, which policies of
// these names have shaped, retains its overrides while the policy is invalid.
func (p *ServicePolicy) Retains(namespaceLabels, serviceLabels map[string]string, shaped []string) bool {
	return slices.Contains(shaped, p.Name) || p.Selects(namespaceLabels, serviceLabels)
}

// ServiceResolution is what policies result in for some Services.
type ServiceResolution struct {
	Merged
	// Overrides are those that win; nil fields are the Service's own.
	Overrides v1alpha1.ServiceOverrides
}

// Services resolves overrides of Services. Services that the same policies select share one
// resolution. It is for concurrent use.
type Services struct {
	*resolver[ServicePolicy, *ServiceResolution]
}

// NewServices takes the policies in any order, and retains them.
func NewServices(policies []ServicePolicy) *Services {
	return &Services{newResolver[ServicePolicy, *ServiceResolution](policies, func(p ServicePolicy) (int32, string) { return p.Priority, p.Name })}
}

// Resolve returns the overrides of a Service with these labels in a Namespace with those. The
// result is read-only.
func (s *Services) Resolve(namespaceLabels, serviceLabels map[string]string) *ServiceResolution {
	selects := func(p ServicePolicy) bool { return p.Selects(namespaceLabels, serviceLabels) }
	return s.resolve(selects, func(selected []ServicePolicy) *ServiceResolution {
		r := &ServiceResolution{Merged: newMerged()}
		for _, p := range selected {
			r.add(p.Name, &r.Overrides, p.Overrides, wholeOverrides())
		}
		return r
	})
}

// DifferingOverrides returns the names in JSON of the fields in which overrides differ.
func DifferingOverrides(a, b *v1alpha1.ServiceOverrides) []string {
	return differing(a, b, wholeOverrides())
}

// ServicePolicyOf parses a policy, and names every invalid field. The API denies most mistakes
// itself; this finds the others, such as in objects stored before a rule existed. A valid selector
// is set even if other fields are invalid; an invalid one is nil.
func ServicePolicyOf(p *v1alpha1.ServiceProxyPolicy) (ServicePolicy, field.ErrorList) {
	spec := field.NewPath("spec")
	out := ServicePolicy{Name: p.Name, Priority: ptr.Deref(p.Spec.Priority, 0), Overrides: &p.Spec.Overrides}
	var errs, more field.ErrorList
	out.Namespaces, errs = Selector(p.Spec.NamespaceSelector, spec.Child("namespaceSelector"))
	out.Services, more = Selector(p.Spec.ServiceSelector, spec.Child("serviceSelector"))
	errs = append(errs, more...)
	return out, append(errs, ValidateOverrides(&p.Spec.Overrides, spec.Child("overrides"))...)
}

// ValidateOverrides names every invalid field of overrides at a path.
func ValidateOverrides(o *v1alpha1.ServiceOverrides, at *field.Path) field.ErrorList {
	errs := validateRanges(o.LoadBalancerSourceRanges, at.Child("loadBalancerSourceRanges"))
	errs = append(errs, oneOf(o.NodePorts, at.Child("nodePorts"), v1alpha1.Enabled, v1alpha1.Disabled)...)
	errs = append(errs, oneOf(o.ExternalIPs, at.Child("externalIPs"), v1alpha1.Enabled, v1alpha1.Disabled)...)
	errs = append(errs, oneOf(o.InternalTrafficPolicy, at.Child("internalTrafficPolicy"), v1alpha1.TrafficPolicyCluster, v1alpha1.TrafficPolicyLocal)...)
	errs = append(errs, oneOf(o.ExternalTrafficPolicy, at.Child("externalTrafficPolicy"), v1alpha1.TrafficPolicyCluster, v1alpha1.TrafficPolicyLocal)...)
	if a := o.SessionAffinity; a != nil && (a.ClientIPTimeoutSeconds < 1 || a.ClientIPTimeoutSeconds > maxAffinitySeconds) {
		errs = append(errs, field.Invalid(at.Child("sessionAffinity", "clientIPTimeoutSeconds"), a.ClientIPTimeoutSeconds,
			fmt.Sprintf("must be 1 to %d (a day)", maxAffinitySeconds)))
	}
	return append(errs, oneOf(o.IPVSScheduler, at.Child("ipvsScheduler"), v1alpha1.IPVSSchedulers()...)...)
}

func validateRanges(ranges []string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case ranges != nil && len(ranges) == 0:
		errs = append(errs, field.Required(at, "remove it to keep the Service's own ranges, or set 0.0.0.0/0 and ::/0 to allow all clients"))
	case len(ranges) > maxSourceRanges:
		errs = append(errs, field.TooMany(at, len(ranges), maxSourceRanges))
	}
	for i, s := range ranges {
		if prefix, err := netip.ParsePrefix(s); err != nil || prefix.Addr().Is4In6() {
			errs = append(errs, field.Invalid(at.Index(i), s, "must be a CIDR such as 198.51.100.0/24 or 2001:db8::/64"))
		}
	}
	return errs
}

func oneOf[T ~string](value *T, at *field.Path, valid ...T) field.ErrorList {
	if value == nil || slices.Contains(valid, *value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(at, *value, valid)}
}

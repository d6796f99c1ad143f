package policies

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
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
			r.add(p.Name, &r.Overrides, p.Overrides)
		}
		return r
	})
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
	errs = append(errs, oneOf(o.Serving, at.Child("serving"), v1alpha1.ServingKernel, v1alpha1.ServingUserspace)...)
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

// ReadOverrides parses AnnotationOverrides. Without it nothing was granted. It returns nil if it
// cannot be parsed.
func ReadOverrides(text string) *v1alpha1.OverridesGrant {
	grant := &v1alpha1.OverridesGrant{}
	if text == "" {
		return grant
	}
	err := json.Unmarshal([]byte(text), grant)
	if err != nil || len(ValidateOverrides(&grant.Overrides, field.NewPath("overrides"))) > 0 {
		return nil
	}
	return grant
}

// ServiceChange is a change of the overrides of a Service.
type ServiceChange struct {
	// Before are the present overrides.
	Before *v1alpha1.OverridesGrant
	// Desired are the overrides of its policies.
	Desired *ServiceResolution
	// Generations are those of all existing policies, by name.
	Generations map[string]int64
	// Rejected: nodes reject the Service as it is.
	Rejected bool
}

// Causes are the policies by which overrides change: for each field that does, the one that sets it
// now, and the one that no longer does, if they exist. There are none if only names change. Sorted
// by name.
func (c *ServiceChange) Causes() []v1alpha1.Cause {
	causes := map[string]v1alpha1.Cause{}
	note := func(name string) {
		if generation, exists := c.Generations[name]; exists {
			causes[name] = v1alpha1.Cause{Name: name, Generation: generation}
		}
	}
	for _, field := range differing(&c.Before.Overrides, &c.Desired.Overrides) {
		note(c.Desired.Owners[field])
		before := c.Before.Owners[field]
		if _, overridden := c.Desired.Overridden[before][field]; !overridden {
			note(before)
		}
	}
	return sortedCauses(causes)
}

// Grant returns the grant of the change. Its causes are responsible if nodes then reject the
// Service. If they rejected it before, only the former causes are: their change has not helped.
func (c *ServiceChange) Grant() *v1alpha1.OverridesGrant {
	by := map[string]v1alpha1.Cause{}
	causes := c.Causes()
	for _, before := range c.Before.By {
		// Without a cause only names change. If nodes reject the Service, the former causes remain
		// responsible.
		if c.Generations[before.Name] == before.Generation && (c.Rejected || len(causes) == 0) {
			by[before.Name] = before
		}
	}
	for _, cause := range causes {
		blamed := slices.ContainsFunc(c.Before.By, func(b v1alpha1.Cause) bool { return b.Name == cause.Name })
		if !c.Rejected || blamed {
			by[cause.Name] = cause
		}
	}
	out := &v1alpha1.OverridesGrant{Overrides: c.Desired.Overrides, Owners: c.Desired.Owners, By: sortedCauses(by)}
	if c.Rejected || len(causes) == 0 { // what was to blame, or may be, still is
		out.Changed = c.Before.Changed && len(by) > 0
	}
	return out
}

// Granted reports whether a grant is what the policies result in.
func (r *ServiceResolution) Granted(grant *v1alpha1.OverridesGrant) bool {
	return maps.Equal(r.Owners, grant.Owners) && len(differing(&grant.Overrides, &r.Overrides)) == 0
}

func sortedCauses(causes map[string]v1alpha1.Cause) []v1alpha1.Cause {
	return slices.SortedFunc(maps.Values(causes), func(a, b v1alpha1.Cause) int { return cmp.Compare(a.Name, b.Name) })
}

// RejectedChange is a Service that nodes reject after a change by a policy.
type RejectedChange struct {
	Namespace string
	// Changed: the Service itself has changed as well, so either may be the cause.
	Changed bool
}

// Halt lists the Services for which a change by a policy has halted. Zero: for none.
type Halt struct {
	// All: the change has halted for every Service that does not have it yet.
	All bool
	// Namespaces are those whose Services wait, sorted; empty if all do.
	Namespaces []string
}

// HaltOf decides for which Services a change has halted, by the Services that nodes reject after
// it. A Service that has not changed itself is rejected because of the policy: the change halts for
// all. A user who can edit the Services of a namespace can cause a rejection at any time by
// changing them: then only the Services of that namespace wait, however many namespaces the user
// has.
func HaltOf(rejected []RejectedChange) Halt {
	var h Halt
	for _, r := range rejected {
		if !r.Changed {
			return Halt{All: true}
		}
		h.Namespaces = append(h.Namespaces, r.Namespace)
	}
	slices.Sort(h.Namespaces)
	h.Namespaces = slices.Compact(h.Namespaces)
	return h
}

// Applies reports whether the Services of a namespace wait.
func (h Halt) Applies(namespace string) bool {
	return h.All || slices.Contains(h.Namespaces, namespace)
}

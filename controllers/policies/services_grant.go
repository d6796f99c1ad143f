package policies

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ReadOverrides parses AnnotationOverrides. Without it nothing was granted. It returns nil if it
// cannot be parsed.
func ReadOverrides(text string) *v1alpha1.OverridesGrant {
	grant := &v1alpha1.OverridesGrant{}
	if text == "" {
		return grant
	}
	if err := json.Unmarshal([]byte(text), grant); err != nil {
		return nil
	}
	if len(ValidateOverrides(&grant.Overrides, field.NewPath("overrides"))) > 0 {
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
	for _, field := range differing(&c.Before.Overrides, &c.Desired.Overrides, wholeOverrides()) {
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
	return maps.Equal(r.Owners, grant.Owners) && len(differing(&grant.Overrides, &r.Overrides, wholeOverrides())) == 0
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

// Halt says for which Services a change by a policy has halted. Zero: for none.
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

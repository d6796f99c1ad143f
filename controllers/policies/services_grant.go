package policies

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ReadOverrides reads AnnotationOverrides. Without it nothing was granted. It returns nil
// for what somebody has written there that makes no sense.
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

// ServiceChange is a Service that has something of its policies, and is to have
// something else.
type ServiceChange struct {
	// Before is what it has.
	Before *v1alpha1.OverridesGrant
	// Desired is what its policies make of it now.
	Desired *ServiceResolution
	// Generations are those of all policies that exist, by name.
	Generations map[string]int64
	// Refused: nodes refuse the Service as it is.
	Refused bool
}

// Causes are the policies by which overrides change: of each field that does, the one
// that sets it now, and the one that did and does not any more, as long as they exist.
// None where only names change. Sorted by name.
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

// Grant is what the Service is given by the change. Its causes are to be held to account
// if nodes then refuse the Service. Where they did so before, only those are that were
// already: their change has not helped.
func (c *ServiceChange) Grant() *v1alpha1.OverridesGrant {
	by := map[string]v1alpha1.Cause{}
	causes := c.Causes()
	for _, before := range c.Before.By {
		// Without a cause only names change. Where nodes refuse the Service, others go on
		// to be the reason.
		if c.Generations[before.Name] == before.Generation && (c.Refused || len(causes) == 0) {
			by[before.Name] = before
		}
	}
	for _, cause := range causes {
		blamed := slices.ContainsFunc(c.Before.By, func(b v1alpha1.Cause) bool { return b.Name == cause.Name })
		if !c.Refused || blamed {
			by[cause.Name] = cause
		}
	}
	out := &v1alpha1.OverridesGrant{Overrides: c.Desired.Overrides, Owners: c.Desired.Owners, By: sortedCauses(by)}
	if c.Refused || len(causes) == 0 { // what was to blame, or may be, still is
		out.Changed = c.Before.Changed && len(by) > 0
	}
	return out
}

// Granted reports whether a grant is what policies make of the Service.
func (r *ServiceResolution) Granted(grant *v1alpha1.OverridesGrant) bool {
	return maps.Equal(r.Owners, grant.Owners) && len(differing(&grant.Overrides, &r.Overrides, wholeOverrides())) == 0
}

func sortedCauses(causes map[string]v1alpha1.Cause) []v1alpha1.Cause {
	return slices.SortedFunc(maps.Values(causes), func(a, b v1alpha1.Cause) int { return cmp.Compare(a.Name, b.Name) })
}

package policies

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// causes reads causes such as "a@1 b@2".
func causes(t *testing.T, text string) []v1alpha1.Cause {
	t.Helper()
	var out []v1alpha1.Cause
	for word := range strings.FieldsSeq(text) {
		name, number, _ := strings.Cut(word, "@")
		c := v1alpha1.Cause{Name: name}
		if _, err := fmt.Sscan(number, &c.Generation); err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

// TestReadOverrides: what others have written there is not taken for a grant.
func TestReadOverrides(t *testing.T) {
	for text, want := range map[string]*v1alpha1.OverridesGrant{
		"":  {},
		"{": nil,
		`{"overrides": {"nodePorts": "Perhaps"}}`:                                nil,
		`{"overrides": {"loadBalancerSourceRanges": ["everybody"]}}`:             nil,
		`{"overrides": {"nodePorts": "Disabled"}, "owners": {"nodePorts": "p"}}`: {Overrides: *overrides(t, `{nodePorts: Disabled}`), Owners: map[string]string{"nodePorts": "p"}},
	} {
		if diff := cmp.Diff(want, ReadOverrides(text)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

func TestServiceChange(t *testing.T) {
	a := func(text string) ServicePolicy { return servicePolicy(t, "a", 2, "", "", text) }
	b := func(text string) ServicePolicy { return servicePolicy(t, "b", 1, "", "", text) }
	tests := []struct {
		name          string
		before, after []ServicePolicy
		exist, by     string
		rejected      bool
		causes, grant string
	}{
		{name: "nothing", exist: "a@1"},
		{name: "a new policy", after: []ServicePolicy{a(`{nodePorts: Disabled}`)}, exist: "a@1", causes: "a@1", grant: "a@1"},
		{name: "changed again", before: []ServicePolicy{a(`{nodePorts: Disabled}`)}, after: []ServicePolicy{a(`{nodePorts: Enabled}`)},
			exist: "a@2", by: "a@1", causes: "a@2", grant: "a@2"},
		{name: "a policy is deleted", before: []ServicePolicy{a(`{nodePorts: Disabled}`)}, by: "a@1"},
		{name: "a policy selects it no more", before: []ServicePolicy{a(`{nodePorts: Disabled}`)}, exist: "a@2", by: "a@1", causes: "a@2", grant: "a@2"},
		{name: "a field is left out", before: []ServicePolicy{a(`{nodePorts: Disabled, ipvsScheduler: sh}`), b(`{externalIPs: Disabled}`)},
			after: []ServicePolicy{a(`{nodePorts: Disabled}`), b(`{externalIPs: Disabled}`)}, exist: "a@2 b@1", by: "b@1", causes: "a@2", grant: "a@2"},
		{name: "another takes over", before: []ServicePolicy{a(`{nodePorts: Disabled}`), b(`{nodePorts: Enabled}`)},
			after: []ServicePolicy{b(`{nodePorts: Enabled}`)}, exist: "a@2 b@1", causes: "a@2 b@1", grant: "a@2 b@1"},
		{name: "one is overridden", before: []ServicePolicy{b(`{nodePorts: Enabled}`)},
			after: []ServicePolicy{a(`{nodePorts: Disabled}`), b(`{nodePorts: Enabled}`)}, exist: "a@1 b@1", causes: "a@1", grant: "a@1"},
		{name: "the same by another name", before: []ServicePolicy{b(`{nodePorts: Disabled}`)},
			after: []ServicePolicy{a(`{nodePorts: Disabled}`)}, exist: "a@1 b@1", by: "b@1", grant: "b@1"},
		{name: "rejected already: no policy is to blame", after: []ServicePolicy{a(`{nodePorts: Disabled}`)}, exist: "a@1", rejected: true, causes: "a@1"},
		{name: "rejected already: it has not helped", before: []ServicePolicy{a(`{nodePorts: Disabled}`)}, after: []ServicePolicy{a(`{nodePorts: Enabled}`)},
			exist: "a@2", by: "a@1", rejected: true, causes: "a@2", grant: "a@2"},
		{name: "rejected already by another", before: []ServicePolicy{a(`{nodePorts: Disabled}`)},
			after: []ServicePolicy{a(`{nodePorts: Disabled}`), b(`{ipvsScheduler: sh}`)}, exist: "a@1 b@1", by: "a@1", rejected: true, causes: "b@1", grant: "a@1"},
		{name: "rejected already by an older generation", before: []ServicePolicy{a(`{nodePorts: Disabled}`)},
			after: []ServicePolicy{a(`{nodePorts: Disabled}`), b(`{ipvsScheduler: sh}`)}, exist: "a@2 b@1", by: "a@1", rejected: true, causes: "b@1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before, after := NewServices(tt.before).Resolve(nil, nil), NewServices(tt.after).Resolve(nil, nil)
			c := &ServiceChange{
				Before:      &v1alpha1.OverridesGrant{Overrides: before.Overrides, Owners: before.Owners, By: causes(t, tt.by)},
				Desired:     after,
				Generations: map[string]int64{},
				Rejected:    tt.rejected,
			}
			for _, e := range causes(t, tt.exist) {
				c.Generations[e.Name] = e.Generation
			}
			if diff := cmp.Diff(causes(t, tt.causes), c.Causes()); diff != "" {
				t.Errorf("causes (-want +got):\n%s", diff)
			}
			grant := c.Grant()
			if diff := cmp.Diff(causes(t, tt.grant), grant.By); diff != "" {
				t.Errorf("held to account (-want +got):\n%s", diff)
			}
			c.Before.Changed = true
			if changed, want := c.Grant().Changed, len(grant.By) > 0 && (tt.rejected || len(c.Causes()) == 0); changed != want {
				t.Errorf("the Service may be to blame: %t, want %t", changed, want)
			}
			if !after.Granted(grant) {
				t.Errorf("%+v is not granted", grant)
			}
			if same := cmp.Equal(before, after); before.Granted(grant) != same {
				t.Errorf("the former grant is granted: %t", !same)
			}
		})
	}
}

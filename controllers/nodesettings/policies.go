package nodesettings

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/rollout"
)

// PolicySet is NodeProxy with all policies for nodes, parsed. It is not for concurrent use.
type PolicySet struct {
	All     []*v1alpha1.NodeProxyPolicy // by name
	Nodes   *policies.Nodes             // the valid policies
	Invalid map[string]error            // the errors of policies that are invalid by themselves
	invalid []policies.NodePolicy       // these policies, by name
	Budgets map[string]rollout.Budget   // of all policies, and of NodeProxy (policies.Base)
}

// NewPolicySet parses the NodeProxy, nil if there is none, and the policies.
func NewPolicySet(np *v1alpha1.NodeProxy, all []v1alpha1.NodeProxyPolicy) *PolicySet {
	s := &PolicySet{Invalid: map[string]error{}, Budgets: map[string]rollout.Budget{}}
	rolloutPath := field.NewPath("spec", "rollout")
	var valid []policies.NodePolicy
	for i := range all {
		p := &all[i]
		policy, errs := policies.NodePolicyOf(p)
		budget, more := rollout.BudgetOf(p.Generation, p.Spec.Rollout, rolloutPath)
		if errs = append(errs, more...); len(errs) > 0 {
			s.Invalid[p.Name] = errs.ToAggregate()
			s.invalid = append(s.invalid, policy)
			budget = rollout.Budget{Generation: p.Generation, Paused: true} // it only counts what it selects
		} else {
			valid = append(valid, policy)
		}
		s.Budgets[p.Name] = budget
	}
	slices.SortFunc(s.invalid, func(a, b policies.NodePolicy) int { return cmp.Compare(a.Name, b.Name) })
	s.Refresh(all)
	var base *v1alpha1.ProxySettings
	if np != nil {
		base = (*v1alpha1.ProxySettings)(np.Spec.Settings)
		budget, errs := rollout.BudgetOf(np.Generation, np.Spec.Rollout, rolloutPath)
		if len(errs) > 0 { // stored before the API denied it: change nothing rather than too much
			budget.Paused = true
		}
		s.Budgets[policies.Base] = budget
	}
	s.Nodes = policies.NewNodes(base, valid)
	return s
}

// Fingerprint identifies the versions of the objects of a PolicySet.
func Fingerprint(np *v1alpha1.NodeProxy, all []v1alpha1.NodeProxyPolicy) string {
	var parts []string
	for i := range all {
		parts = append(parts, fmt.Sprintf("%s/%s/%d", all[i].Name, all[i].UID, all[i].Generation))
	}
	slices.Sort(parts)
	if np != nil {
		parts = append(parts, fmt.Sprintf("NodeProxy/%s/%d", np.UID, np.Generation))
	}
	return strings.Join(parts, "\n")
}

// Refresh sets the current policies with their status. Their specs must be those that were parsed.
func (s *PolicySet) Refresh(all []v1alpha1.NodeProxyPolicy) {
	s.All = s.All[:0]
	for i := range all {
		s.All = append(s.All, &all[i])
	}
	slices.SortFunc(s.All, func(a, b *v1alpha1.NodeProxyPolicy) int { return cmp.Compare(a.Name, b.Name) })
}

// Find returns a policy, nil if there is none of that name.
func (s *PolicySet) Find(name string) *v1alpha1.NodeProxyPolicy {
	i, found := slices.BinarySearchFunc(s.All, name, func(p *v1alpha1.NodeProxyPolicy, name string) int { return cmp.Compare(p.Name, name) })
	if !found {
		return nil
	}
	return s.All[i]
}

// Exists reports whether there is a policy of that name.
func (s *PolicySet) Exists(name string) bool { return s.Find(name) != nil }

// InvalidFor returns the first invalid policy, by name, that selects a node with these labels, or
// shaped its settings before; empty: none.
func (s *PolicySet) InvalidFor(nodeLabels labels.Set, shaped []string) string {
	for i := range s.invalid {
		if s.invalid[i].Retains(nodeLabels, shaped) {
			return s.invalid[i].Name
		}
	}
	return ""
}

// Selecting returns all budgets that a node counts for: that of the NodeProxy, and those of the
// policies that select it.
func (s *PolicySet) Selecting(nodeLabels labels.Set, r *policies.NodeResolution) []string {
	out := append([]string{policies.Base}, r.Matching...)
	for i := range s.invalid {
		if s.invalid[i].Selects(nodeLabels) {
			out = append(out, s.invalid[i].Name)
		}
	}
	return out
}

// Causes returns the budgets that a change of a node's settings needs: for each field that differs,
// that of the policy that sets it, else of the one that set it until now, else of the NodeProxy, and
// those of policies that shaped the node and no longer do. The NodeProxy replaces deleted policies.
func (s *PolicySet) Causes(before *v1alpha1.ProxySettings, r *policies.NodeResolution, shaped []string, g *v1alpha1.SettingsGrant) []string {
	owners := map[string]string{}
	if g != nil {
		maps.Copy(owners, g.Owners)
		maps.DeleteFunc(owners, func(_, name string) bool { return !s.Exists(name) })
	}
	maps.Copy(owners, PolicyOwners(r))
	out := policies.Causes(v1alpha1.CompleteSettings(before), &r.Settings.Complete, owners)
	for _, name := range shaped {
		switch {
		case slices.Contains(r.Policies, name):
		case s.Exists(name):
			out = append(out, name)
		default:
			out = append(out, policies.Base)
		}
	}
	if len(out) == 0 {
		out = append(out, policies.Base)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// LastingCauses updates the causes of a change that a node was given and has not applied yet, with
// their current generations, and the NodeProxy instead of deleted policies.
func (s *PolicySet) LastingCauses(by []v1alpha1.Cause) []v1alpha1.Cause {
	var names []string
	for _, g := range by {
		if _, found := s.Budgets[g.Name]; !found {
			g.Name = policies.Base
		}
		names = append(names, g.Name)
	}
	slices.Sort(names)
	return rollout.By(slices.Compact(names), s.Budgets)
}

// NewGrant records which settings a node is given, and why.
func NewGrant(r *policies.NodeResolution, by []v1alpha1.Cause, now time.Time) v1alpha1.SettingsGrant {
	return v1alpha1.SettingsGrant{
		Time: metav1.NewTime(now.UTC().Truncate(time.Second)), Revision: r.Settings.Revision, Owners: PolicyOwners(r), By: by,
	}
}

// PolicyOwners returns the policies that set fields, by the field's path.
func PolicyOwners(r *policies.NodeResolution) map[string]string {
	owners := maps.Clone(r.Owners)
	maps.DeleteFunc(owners, func(_, name string) bool { return name == policies.Base })
	return owners
}

// GrantOf parses the grant of a node's settings. It returns nil if there is none, because the rules
// are from an older release, or if it was edited and is invalid.
func GrantOf(rules *v1alpha1.NodeProxyRules) *v1alpha1.SettingsGrant {
	g := &v1alpha1.SettingsGrant{}
	if err := json.Unmarshal([]byte(rules.Annotations[v1alpha1.AnnotationRollout]), g); err != nil {
		return nil
	}
	return g
}

// SetGrant sets the annotation of a grant.
func SetGrant(rules *v1alpha1.NodeProxyRules, g v1alpha1.SettingsGrant) error {
	text, err := json.Marshal(g)
	if err != nil {
		return fmt.Errorf("encode the grant of settings to %s: %w", rules.Name, err)
	}
	metav1.SetMetaDataAnnotation(&rules.ObjectMeta, v1alpha1.AnnotationRollout, string(text))
	return nil
}

// WithSettings returns the rules of a node with other settings, and a grant.
func WithSettings(stored *v1alpha1.NodeProxyRules, r *policies.NodeResolution, g v1alpha1.SettingsGrant) (*v1alpha1.NodeProxyRules, error) {
	next := stored.DeepCopy()
	r.Settings.Complete.DeepCopyInto(&next.Spec.Settings)
	next.Spec.SettingsRevision = r.Settings.Revision
	next.Spec.Policies, next.Spec.PolicySummary = slices.Clone(r.Policies), render.PolicySummary(r.Policies)
	return next, SetGrant(next, g)
}

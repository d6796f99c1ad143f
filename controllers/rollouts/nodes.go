package rollouts

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/findings"
	"github.com/nodeproxy-io/nodeproxy/controllers/nodesettings"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/rollout"
	"github.com/nodeproxy-io/nodeproxy/controllers/text"
)

// member is a node in a rollout.
type member struct {
	rollout.Node
	rules *v1alpha1.NodeProxyRules // nil: it has none yet
	grant *v1alpha1.SettingsGrant  // nil: not known
	// resolution are the desired settings. Nil: the Node is absent, so its labels are not known.
	resolution *policies.NodeResolution
	// kept says why the node keeps its settings, whatever is desired; empty reason: it does not.
	kept findings.Finding
	// upkeep: the settings are the desired ones, but their grant must be written again, which needs
	// no budget.
	upkeep bool
}

// fleet combines the objects of nodes.
type fleet struct {
	set *nodesettings.PolicySet
	now time.Time
	// on: there is a NodeProxy. Without one, nodes are not changed.
	on       bool
	revision func(*v1alpha1.NodeProxyRules) string
}

// members returns all nodes, by name: those with rules, and Linux Nodes without.
func (f *fleet) members(nodes []corev1.Node, rules []v1alpha1.NodeProxyRules) []member {
	present := make(map[string]*corev1.Node, len(nodes))
	for i := range nodes {
		if render.Linux(&nodes[i]) {
			present[nodes[i].Name] = &nodes[i]
		}
	}
	out := make([]member, 0, len(rules))
	for i := range rules {
		name := rules[i].Name
		out = append(out, f.member(name, present[name], &rules[i]))
		delete(present, name)
	}
	for name, node := range present {
		out = append(out, f.member(name, node, nil))
	}
	slices.SortFunc(out, func(a, b member) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// member returns a node. Either its Node or its rules may be nil.
func (f *fleet) member(name string, node *corev1.Node, rules *v1alpha1.NodeProxyRules) member {
	m := member{Node: rollout.Node{Name: name, Absent: node == nil}, rules: rules}
	if node != nil {
		m.Zone = node.Labels[corev1.LabelTopologyZone]
		m.resolution = f.set.Nodes.Resolve(node.Labels)
		m.Selected = f.set.Selecting(node.Labels, m.resolution)
	}
	m.Idle = rules == nil // nothing is applied there that a change could break
	if rules != nil {
		m.Carries, m.Wants = rules.Spec.SettingsRevision, rules.Spec.SettingsRevision
		m.Idle, m.Programmed = nothingAtRisk(rules), doesItsSettings(rules)
		m.Applied = hasApplied(rules, rules.Spec.SettingsRevision)
		m.grant = nodesettings.GrantOf(rules)
		if m.grant != nil {
			m.Given, m.By = laterStart(rules, m.grant.Time.Time), causesOf(m.grant)
		}
	}
	if node == nil {
		return m
	}
	if m.kept = f.retaining(node.Labels, &m); m.kept.Reason != "" {
		m.Kept = true
		return m
	}
	f.desire(&m)
	return m
}

// retaining says why a node keeps its settings.
func (f *fleet) retaining(nodeLabels labels.Set, m *member) findings.Finding {
	if !f.on {
		return findings.Finding{Reason: v1alpha1.ReasonNoNodeProxy, Message: "there is no NodeProxy"}
	}
	var shaped []string
	if m.rules != nil {
		shaped = m.rules.Spec.Policies
	}
	if name := f.set.InvalidFor(nodeLabels, shaped); name != "" {
		return findings.Finding{Reason: v1alpha1.ReasonInvalidPolicy, Message: fmt.Sprintf("keeps its settings because policy %s is not valid", name)}
	}
	if m.resolution.Invalid != nil {
		return unusable(m.resolution)
	}
	if m.rules == nil {
		return findings.Finding{Reason: v1alpha1.ReasonWaiting, Message: "has no NodeProxyRules yet"}
	}
	return findings.Finding{}
}

// desire decides the desired settings of a node with rules, and which budgets they need.
func (f *fleet) desire(m *member) {
	spec, r, g := &m.rules.Spec, m.resolution, m.grant
	want, actual := r.Settings.Revision, f.revision(m.rules)
	edited := spec.SettingsRevision != actual || g != nil && g.Revision != actual
	m.Wants = want
	switch {
	case actual == want && !edited:
		m.upkeep = !slices.Equal(spec.Policies, r.Policies) || ownersDiffer(g, r)
		if by := f.set.LastingCauses(m.By); m.Idle && !m.Applied && len(m.By) > 0 {
			m.By, m.upkeep = nil, true // nothing waits for it
		} else if !m.Applied && !slices.Equal(by, m.By) {
			m.By, m.Given, m.upkeep = by, f.now, true // a changed spec gives it another chance
		}
	case actual == want || g != nil && g.Revision == want:
		m.Carries, m.upkeep = want, true
		m.Given = f.now // its time to apply them starts again
		m.Applied = hasApplied(m.rules, want)
	default:
		m.Carries = cmp.Or(actual, "unknown")
		m.Causes = f.set.Causes(&spec.Settings, r, spec.Policies, g)
	}
	if m.Given.IsZero() {
		m.Given = f.now // for a grant that there was not
	}
}

// unusable says why a node keeps its settings if the desired ones are not valid together.
func unusable(r *policies.NodeResolution) findings.Finding {
	if slices.Contains(r.Blamed, policies.Base) {
		return findings.Finding{Reason: v1alpha1.ReasonInvalidSettings, Message: "keeps its settings because those of NodeProxy are not valid: " + r.Invalid.Error()}
	}
	return findings.Finding{Reason: v1alpha1.ReasonInvalidResult, Message: fmt.Sprintf("keeps its settings because those of %s are not valid: %s",
		text.FirstNames(r.Blamed, maxNodesInText), r.Invalid)}
}

// renewed returns the grant of a node whose settings stay the same.
func (m *member) renewed() v1alpha1.SettingsGrant {
	return nodesettings.NewGrant(m.resolution, m.By, m.Given)
}

// given returns the grant of a node that gets the desired settings.
func (m *member) given(budgets map[string]rollout.Budget, now time.Time) v1alpha1.SettingsGrant {
	if m.Idle {
		return nodesettings.NewGrant(m.resolution, nil, now)
	}
	return nodesettings.NewGrant(m.resolution, rollout.By(m.Causes, budgets), now)
}

func causesOf(g *v1alpha1.SettingsGrant) []rollout.Grant {
	var out []rollout.Grant
	for _, c := range g.By {
		out = append(out, rollout.Grant{Name: c.Name, Generation: c.Generation})
	}
	return out
}

// ownersDiffer reports whether other policies set fields than a grant says, which may be nil.
func ownersDiffer(g *v1alpha1.SettingsGrant, r *policies.NodeResolution) bool {
	var known map[string]string
	if g != nil {
		known = g.Owners
	}
	return !maps.Equal(known, nodesettings.PolicyOwners(r))
}

// hasApplied reports whether the agent has applied, or compared, a revision.
func hasApplied(rules *v1alpha1.NodeProxyRules, revision string) bool {
	return revision != "" && rules.Status.SettingsRevision == revision
}

// laterStart returns the time from which a node could have applied a grant: the start of its agent,
// if that has applied nothing since. Otherwise an agent that restarts, and fails at first, would
// halt a rollout of long ago.
func laterStart(rules *v1alpha1.NodeProxyRules, given time.Time) time.Time {
	agent := rules.Status.Agent
	if agent != nil && rules.Status.SettingsRevision == "" && agent.StartTime.After(given) {
		return agent.StartTime.Time
	}
	return given
}

// doesItsSettings reports whether the node does what its settings require: it is programmed, or
// compared in Audit.
func doesItsSettings(rules *v1alpha1.NodeProxyRules) bool {
	c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
	return c != nil && (c.Status == metav1.ConditionTrue ||
		c.Reason == v1alpha1.ReasonAuditDiffers || c.Reason == v1alpha1.ReasonAuditInSync)
}

// nothingAtRisk reports whether other settings currently change nothing on a node.
func nothingAtRisk(rules *v1alpha1.NodeProxyRules) bool {
	return rules.Status.Agent == nil || meta.IsStatusConditionTrue(rules.Status.Conditions, v1alpha1.ConditionConflictingProxy)
}

// revisions caches the revisions of settings in rules, which take some time to compute. It is not
// for concurrent use.
type revisions struct {
	known map[types.UID]knownRevision
}

type knownRevision struct {
	generation int64
	revision   string
}

// of returns the revision of the settings in rules, whatever revision they name; empty: these
// settings are not valid.
func (k *revisions) of(rules *v1alpha1.NodeProxyRules) string {
	if known, found := k.known[rules.UID]; found && known.generation == rules.Generation {
		return known.revision
	}
	revision := ""
	if settings, err := render.CompleteSettings(&rules.Spec.Settings); err == nil {
		revision = settings.Revision
	}
	k.known[rules.UID] = knownRevision{rules.Generation, revision}
	return revision
}

// forgetOthers forgets all others.
func (k *revisions) forgetOthers(rules []v1alpha1.NodeProxyRules) {
	if len(k.known) <= len(rules) {
		return
	}
	next := make(map[types.UID]knownRevision, len(rules))
	for i := range rules {
		if known, found := k.known[rules[i].UID]; found {
			next[rules[i].UID] = known
		}
	}
	k.known = next
}

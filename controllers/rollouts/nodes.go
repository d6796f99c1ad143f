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
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/nodesettings"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/rollout"
)

// maxNodesInText is how many nodes a message names.
const maxNodesInText = 3

type fleetNode struct {
	rollout.Node
	rules *v1alpha1.NodeProxyRules // nil: it has none yet
	grant *v1alpha1.SettingsGrant  // nil: not known
	// resolution are the desired settings. Nil: the Node is absent, so its labels are not known.
	resolution *policies.NodeResolution
	// retains is why the node retains its settings, whatever is desired; empty reason: it does not.
	retains reports.Finding
	// renew: the settings are the desired ones, but their grant must be written again, which needs no
	// budget.
	renew bool
}

// fleet combines the objects of nodes.
type fleet struct {
	set       *nodesettings.PolicySet
	now       time.Time
	on        bool // there is a NodeProxy; without one, nodes are not changed
	revisions revisions
}

// nodes returns all nodes, by name: those with rules, and Linux Nodes without.
func (f *fleet) nodes(nodes []corev1.Node, rules []v1alpha1.NodeProxyRules) []fleetNode {
	present := make(map[string]*corev1.Node, len(nodes))
	for i := range nodes {
		if render.Linux(&nodes[i]) {
			present[nodes[i].Name] = &nodes[i]
		}
	}
	out := make([]fleetNode, 0, len(rules))
	for i := range rules {
		name := rules[i].Name
		out = append(out, f.node(name, present[name], &rules[i]))
		delete(present, name)
	}
	for name, node := range present {
		out = append(out, f.node(name, node, nil))
	}
	slices.SortFunc(out, func(a, b fleetNode) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// node returns a node. Either its Node or its rules may be nil.
func (f *fleet) node(name string, node *corev1.Node, rules *v1alpha1.NodeProxyRules) fleetNode {
	m := fleetNode{Node: rollout.Node{Name: name, Absent: node == nil}, rules: rules}
	if node != nil {
		m.Zone = node.Labels[corev1.LabelTopologyZone]
		m.resolution = f.set.Nodes.Resolve(node.Labels)
		m.Selected = f.set.Selecting(node.Labels, m.resolution)
	}
	m.Idle = rules == nil // nothing is applied there that a change could break
	if rules != nil {
		m.Actual, m.Desired = rules.Spec.SettingsRevision, rules.Spec.SettingsRevision
		m.Idle, m.Programmed = nothingAtRisk(rules), isProgrammed(rules)
		m.Applied = hasApplied(rules, rules.Spec.SettingsRevision)
		m.grant = nodesettings.GrantOf(rules)
		if m.grant != nil {
			m.Given, m.By = laterStart(rules, m.grant.Time.Time), m.grant.By
		}
	}
	if node == nil {
		return m
	}
	if m.retains = f.retains(node.Labels, &m); m.retains.Reason != "" {
		m.Retains = true
		return m
	}
	f.desire(&m)
	return m
}

// retains returns why a node retains its settings.
func (f *fleet) retains(nodeLabels labels.Set, m *fleetNode) reports.Finding {
	if !f.on {
		return reports.Finding{Reason: v1alpha1.ReasonNoNodeProxy, Message: "there is no NodeProxy"}
	}
	invalid := f.set.InvalidFor(nodeLabels, cmp.Or(m.rules, &v1alpha1.NodeProxyRules{}).Spec.Policies)
	switch r := m.resolution; {
	case invalid != "":
		return reports.Finding{Reason: v1alpha1.ReasonInvalidPolicy, Message: fmt.Sprintf("retains its settings because policy %s is invalid", invalid)}
	case r.Invalid != nil && slices.Contains(r.Blamed, policies.Base):
		return reports.Finding{Reason: v1alpha1.ReasonInvalidSettings, Message: "retains its settings because those of NodeProxy are invalid: " + r.Invalid.Error()}
	case r.Invalid != nil:
		return reports.Finding{Reason: v1alpha1.ReasonInvalidResult, Message: fmt.Sprintf("retains its settings because those of %s are invalid: %s", named(r.Blamed), r.Invalid)}
	case m.rules == nil:
		return reports.Finding{Reason: v1alpha1.ReasonWaiting, Message: "has no NodeProxyRules yet"}
	}
	return reports.Finding{}
}

// desire decides the desired settings of a node with rules, and which budgets they need.
func (f *fleet) desire(m *fleetNode) {
	spec, r, g := &m.rules.Spec, m.resolution, m.grant
	want, actual := r.Settings.Revision, f.revisions.of(m.rules)
	edited := spec.SettingsRevision != actual || g != nil && g.Revision != actual
	m.Desired = want
	switch {
	case actual == want && !edited:
		owners := cmp.Or(g, &v1alpha1.SettingsGrant{}).Owners
		m.renew = !slices.Equal(spec.Policies, r.Policies) || !maps.Equal(owners, nodesettings.PolicyOwners(r))
		if by := f.set.LastingCauses(m.By); m.Idle && !m.Applied && len(m.By) > 0 {
			m.By, m.renew = nil, true // nothing waits for it
		} else if !m.Applied && !slices.Equal(by, m.By) {
			m.By, m.Given, m.renew = by, f.now, true // a changed spec gives it another chance
		}
	case actual == want || g != nil && g.Revision == want:
		m.Actual, m.renew = want, true
		m.Given = f.now // its deadline starts again
		m.Applied = hasApplied(m.rules, want)
	default:
		m.Actual = cmp.Or(actual, "unknown")
		m.Causes = f.set.Causes(&spec.Settings, r, spec.Policies, g)
	}
	if m.Given.IsZero() {
		m.Given = f.now // there was no grant
	}
}

func hasApplied(rules *v1alpha1.NodeProxyRules, revision string) bool {
	return revision != "" && rules.Status.SettingsRevision == revision
}

// laterStart returns the time from which a node could have applied a grant: the start of its agent,
// if that has applied nothing since. Otherwise an agent that restarts, and fails initially, would
// halt a rollout of long ago.
func laterStart(rules *v1alpha1.NodeProxyRules, given time.Time) time.Time {
	agent := rules.Status.Agent
	if agent != nil && rules.Status.SettingsRevision == "" && agent.StartTime.After(given) {
		return agent.StartTime.Time
	}
	return given
}

// isProgrammed reports whether the node is programmed, or compared in Audit.
func isProgrammed(rules *v1alpha1.NodeProxyRules) bool {
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
type revisions map[types.UID]knownRevision

type knownRevision struct {
	generation int64
	revision   string
}

// of returns the revision of the settings in rules, whatever revision they name; empty: these
// settings are invalid.
func (k revisions) of(rules *v1alpha1.NodeProxyRules) string {
	if known, found := k[rules.UID]; found && known.generation == rules.Generation {
		return known.revision
	}
	revision := ""
	if settings, err := render.CompleteSettings(&rules.Spec.Settings); err == nil {
		revision = settings.Revision
	}
	k[rules.UID] = knownRevision{rules.Generation, revision}
	return revision
}

// retain forgets all other rules.
func (k revisions) retain(rules []v1alpha1.NodeProxyRules) {
	if len(k) <= len(rules) {
		return
	}
	exist := sets.New[types.UID]()
	for i := range rules {
		exist.Insert(rules[i].UID)
	}
	maps.DeleteFunc(k, func(uid types.UID, _ knownRevision) bool { return !exist.Has(uid) })
}

package rollouts

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/nodesettings"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/rollout"
)

// pass is one pass over all nodes, and its result.
type pass struct {
	set       *nodesettings.PolicySet
	nodeProxy *v1alpha1.NodeProxy // nil: there is none
	nodes     []fleetNode         // by name
	now       time.Time
	decision  rollout.Decision
	granted   map[string]bool // nodes that get their settings now

	// For each policy: the nodes that it selects; those that it no longer selects, but that wait
	// for its budget or have not applied its change yet; why settings of nodes are invalid because
	// of it; and its fields that others set, with their names.
	selected, former map[string][]*fleetNode
	blamed           map[string]error
	overridden       map[string]map[string][]string
}

// newPass sorts nodes by policy.
func newPass(set *nodesettings.PolicySet, np *v1alpha1.NodeProxy, nodes []fleetNode) *pass {
	p := &pass{
		set: set, nodeProxy: np, nodes: nodes, granted: map[string]bool{}, selected: map[string][]*fleetNode{}, former: map[string][]*fleetNode{},
		blamed: map[string]error{}, overridden: map[string]map[string][]string{},
	}
	resolutions := map[*policies.NodeResolution]bool{}
	for i := range nodes {
		m := &nodes[i]
		if m.Absent {
			continue
		}
		for _, name := range m.Selected {
			p.selected[name] = append(p.selected[name], m)
		}
		for _, name := range m.lastChange() {
			if !slices.Contains(m.Selected, name) {
				p.former[name] = append(p.former[name], m)
			}
		}
		if !resolutions[m.resolution] { // many nodes share one
			resolutions[m.resolution] = true
			p.note(m.resolution)
		}
	}
	return p
}

// lastChange returns the budgets of the changes that a node waits for, or has not applied yet.
func (m *fleetNode) lastChange() []string {
	out := slices.Clone(m.Causes)
	for _, g := range m.By {
		if !m.Applied && !m.Idle && !slices.Contains(out, g.Name) {
			out = append(out, g.Name)
		}
	}
	return out
}

// note records the results of a resolution by policy.
func (p *pass) note(r *policies.NodeResolution) {
	for _, name := range r.Blamed {
		if p.blamed[name] == nil {
			p.blamed[name] = r.Invalid
		}
	}
	for name, fields := range r.Overridden {
		into := p.overridden[name]
		if into == nil {
			into = map[string][]string{}
			p.overridden[name] = into
		}
		for path, winner := range fields {
			if !slices.Contains(into[path], winner) {
				into[path] = append(into[path], winner)
				slices.Sort(into[path])
			}
		}
	}
}

func (p *pass) decide(now time.Time) {
	all := make([]rollout.Node, len(p.nodes))
	for i := range p.nodes {
		all[i] = p.nodes[i].Node
	}
	p.now = now
	p.decision = rollout.Decide(now, all, p.set.Budgets)
	for _, name := range p.decision.Grants {
		p.granted[name] = true
	}
}

// notGiven reverts the decision for a node because its settings could not be written, so that the
// status does not report them.
func (p *pass) notGiven(m *fleetNode) {
	if !p.granted[m.Name] {
		return
	}
	delete(p.granted, m.Name)
	for _, name := range m.Selected {
		if s := p.decision.States[name]; s != nil {
			s.Updated--
		}
	}
	for _, name := range m.Causes {
		if s := p.decision.States[name]; s != nil {
			s.Pending++
		}
	}
}

// find returns a node, which must exist.
func (p *pass) find(name string) *fleetNode {
	i, _ := slices.BinarySearchFunc(p.nodes, name, func(m fleetNode, name string) int { return cmp.Compare(m.Name, name) })
	return &p.nodes[i]
}

type progress int

const (
	missedDeadline progress = iota // the order in which examples are named
	retaining
	failing
	updating
	waiting
	done
)

// progressOf returns the progress of a node from the point of view of a budget.
func (p *pass) progressOf(m *fleetNode, budget string) progress {
	s := p.decision.States[budget]
	switch {
	case s != nil && slices.Contains(s.Missed, m.Name):
		return missedDeadline
	case m.Retains:
		return retaining
	case p.granted[m.Name]:
		return updating
	case m.Actual != m.Desired:
		return waiting
	case m.Idle, m.Applied && !m.Programmed:
		return failing
	case !m.Applied:
		return updating
	}
	return done
}

// tally are the nodes by progress, each by name.
type tally map[progress][]*fleetNode

func (t tally) names(which progress) []string {
	var out []string
	for _, m := range t[which] {
		out = append(out, m.Name)
	}
	return out
}

// tallyOf sorts the nodes that a budget applies to: those selected, and those no longer selected
// that still have a change of it.
func (p *pass) tallyOf(budget string) tally {
	t := tally{}
	for _, m := range slices.Concat(p.selected[budget], p.former[budget]) {
		which := p.progressOf(m, budget)
		t[which] = append(t[which], m)
	}
	return t
}

// others returns the budgets besides one that changes of waiting nodes need, by name.
func (t tally) others(budget string) []string {
	names := sets.New[string]()
	for _, m := range t[waiting] {
		names.Insert(m.Causes...)
	}
	return sets.List(names.Delete(budget))
}

// nodeReport is what a node reports: the reason, and the message if something is wrong.
func nodeReport(rules *v1alpha1.NodeProxyRules) string {
	c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
	switch {
	case c == nil || rules.Status.Agent == nil && reports.NotResponding(rules):
		return "no agent has ever reported; check that nodeproxy-agent runs there"
	case isProgrammed(rules) || c.Message == "":
		return c.Reason
	}
	return c.Reason + ": " + strings.TrimSuffix(c.Message, ".")
}

// nodeProblem is the first sentence of a node's report, to quote within another: what to do is in the
// node's own status.
func nodeProblem(rules *v1alpha1.NodeProxyRules) string { return text.FirstSentence(nodeReport(rules)) }

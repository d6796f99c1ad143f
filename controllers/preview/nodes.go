package preview

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/nodesettings"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/rollout"
)

// nodePolicies are the policies for nodes, and what is known about them.
type nodePolicies struct {
	*nodesettings.PolicySet
	selected map[string]int                        // counts the nodes that each valid policy selects
	resolved map[*policies.NodeResolution][]string // the nodes of each resolution
}

// nodes renders the rules of every node.
func (r *renderer) nodes() {
	p := r.nodePolicies()
	stored := map[string]*v1alpha1.NodeProxyRules{}
	for i := range r.in.NodeRules {
		stored[r.in.NodeRules[i].Name] = &r.in.NodeRules[i]
	}
	nodes := map[string]*corev1.Node{}
	for name := range stored {
		nodes[name] = nil // unless it exists
	}
	for i := range r.in.Nodes {
		if node := &r.in.Nodes[i]; render.Linux(node) {
			nodes[node.Name] = node
		}
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		r.node(name, nodes[name], stored[name], p)
	}
	r.reportNodes(p)
}

// nodePolicies parses the policies, and reports the invalid ones.
func (r *renderer) nodePolicies() *nodePolicies {
	p := &nodePolicies{
		PolicySet: nodesettings.NewPolicySet(r.in.NodeProxy, r.in.NodePolicies),
		selected:  map[string]int{}, resolved: map[*policies.NodeResolution][]string{},
	}
	for i := range r.in.NodePolicies {
		name := r.in.NodePolicies[i].Name
		if err := p.Invalid[name]; err != nil {
			r.problem("NodeProxyPolicy %s is not valid, and nodes that it selects retain their settings: %v", name, err)
			continue
		}
		p.selected[name] = 0
	}
	if np := r.in.NodeProxy; np != nil {
		if _, errs := rollout.BudgetOf(np.Generation, np.Spec.Rollout, field.NewPath("spec", "rollout")); len(errs) > 0 {
			r.problem("NodeProxy %s pauses all changes of settings because spec.rollout is not valid: %v", np.Name, errs.ToAggregate())
		}
	}
	return p
}

// node renders the rules of a node. It retains its settings if it does not exist, or if an invalid
// policy shapes or would shape it.
func (r *renderer) node(name string, node *corev1.Node, stored *v1alpha1.NodeProxyRules, p *nodePolicies) {
	in := render.NodeInput{Node: node, Current: stored, FormatVersion: r.format}
	services := make([]render.ServiceSlices, len(r.onNode[name]))
	for i, of := range r.onNode[name] {
		services[i] = *of
	}
	local := render.LocalEndpoints(name, services, cmp.Or(stored, &v1alpha1.NodeProxyRules{}).Spec.LocalEndpoints)
	in.LocalEndpoints = local.Services
	for _, out := range local.LeftOut {
		r.problem("Service %s: the rules of node %s do not contain its local endpoints: %s", out.Service, name, out.Why())
	}
	if node != nil && r.in.NodeProxy != nil {
		resolution := p.Nodes.Resolve(node.Labels)
		p.resolved[resolution] = append(p.resolved[resolution], name)
		for _, policy := range resolution.Matching {
			p.selected[policy]++
		}
		if stored == nil { // it has nothing to retain
			resolution = p.Nodes.ResolveNew(node.Labels)
		}
		if stored == nil || p.InvalidFor(node.Labels, stored.Spec.Policies) == "" {
			in.Settings, in.Policies = resolution.Settings, resolution.Policies
		}
	}
	spec, ok := render.Node(in)
	if !ok { // a new node without valid settings
		return
	}
	r.result.Nodes = append(r.result.Nodes, v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
}

// reportNodes reports what is wrong with the resulting settings, and which fields of policies, and
// which policies, have no effect.
func (r *renderer) reportNodes(p *nodePolicies) {
	lost := map[loss]int{}
	firstNode := func(a, b *policies.NodeResolution) int { return cmp.Compare(p.resolved[a][0], p.resolved[b][0]) }
	for _, resolution := range slices.SortedFunc(maps.Keys(p.resolved), firstNode) {
		names := p.resolved[resolution]
		if resolution.Invalid != nil {
			r.problem("%s: combined with the other policies, the settings of %s (%s) are not valid; existing nodes retain theirs, and new ones get none from it: %v",
				blamed(resolution.Blamed), text.Count(len(names), "node"), text.Some(names, maxNames), resolution.Invalid)
		}
		for policy, fields := range resolution.Overridden {
			for field, winner := range fields {
				lost[loss{policy, field, winner}] += len(names)
			}
		}
	}
	for _, l := range slices.SortedFunc(maps.Keys(lost), loss.compare) {
		r.note("NodeProxyPolicy %s: spec.settings.%s is set by NodeProxyPolicy %s on %s", l.policy, l.field, l.winner, text.Count(lost[l], "node"))
	}
	r.reportUnused("NodeProxyPolicy %s selects no node", p.selected)
}

// blamed names the objects to be corrected.
func blamed(names []string) string {
	if len(names) == 1 && names[0] == policies.Base {
		return "NodeProxy " + v1alpha1.NodeProxyName
	}
	return "NodeProxyPolicy " + strings.Join(names, " and ")
}

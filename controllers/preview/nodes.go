package preview

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/rollout"
)

// nodePolicies are the policies for nodes, and what is known about them.
type nodePolicies struct {
	all *policies.Nodes
	// invalid are the invalid ones, which are not used.
	invalid []policies.NodePolicy
	// selected counts the nodes that each policy selects.
	selected map[string]int
	// resolved are the nodes of each resolution.
	resolved map[*policies.NodeResolution][]string
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
		nodes[name] = nil // unless it is found
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
	p := &nodePolicies{selected: map[string]int{}, resolved: map[*policies.NodeResolution][]string{}}
	rolloutPath := field.NewPath("spec", "rollout")
	var usable []policies.NodePolicy
	for i := range r.in.NodePolicies {
		policy := &r.in.NodePolicies[i]
		one, errs := policies.NodePolicyOf(policy)
		_, more := rollout.BudgetOf(policy.Generation, policy.Spec.Rollout, rolloutPath)
		if errs = append(errs, more...); len(errs) > 0 {
			r.problem("NodeProxyPolicy %s is not valid, and nodes that it selects keep their settings: %v", policy.Name, errs.ToAggregate())
			p.invalid = append(p.invalid, one)
			continue
		}
		p.selected[policy.Name] = 0
		usable = append(usable, one)
	}
	var base *v1alpha1.ProxySettings
	if r.in.NodeProxy != nil {
		base = (*v1alpha1.ProxySettings)(r.in.NodeProxy.Spec.Settings)
		if _, errs := rollout.BudgetOf(r.in.NodeProxy.Generation, r.in.NodeProxy.Spec.Rollout, rolloutPath); len(errs) > 0 {
			r.problem("NodeProxy %s lets no change of settings go on: %v", r.in.NodeProxy.Name, errs.ToAggregate())
		}
	}
	p.all = policies.NewNodes(base, usable)
	return p
}

// node renders the rules of a node. One that does not exist (any more) keeps its settings, and so
// does one that an invalid policy shapes or would shape.
func (r *renderer) node(name string, node *corev1.Node, stored *v1alpha1.NodeProxyRules, p *nodePolicies) {
	in := render.NodeInput{Node: node, Current: stored, FormatVersion: r.format}
	services := make([]render.ServiceSlices, len(r.onNode[name]))
	for i, of := range r.onNode[name] {
		services[i] = *of
	}
	var former []v1alpha1.ServiceLocalEndpoints
	if stored != nil {
		former = stored.Spec.LocalEndpoints
	}
	local := render.Members(name, services, former)
	in.Members = local.Services
	for _, out := range local.LeftOut {
		r.problem("Service %s: node %s is not told of its local endpoints: %s", out.Service, name, out.Why())
	}
	if node != nil && r.in.NodeProxy != nil {
		resolution := p.all.Resolve(node.Labels)
		p.resolved[resolution] = append(p.resolved[resolution], name)
		for _, policy := range resolution.Matching {
			p.selected[policy]++
		}
		if stored == nil { // it has nothing to keep
			resolution = p.all.ResolveNew(node.Labels)
		}
		if stored == nil || !p.keeps(node, stored) {
			in.Settings, in.Policies = resolution.Settings, resolution.Policies
		}
	}
	spec, ok := render.Node(in)
	if !ok { // a new node, and no valid settings to give it
		return
	}
	r.result.Nodes = append(r.result.Nodes, v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
}

// keeps reports whether a node keeps its settings because of an invalid policy.
func (p *nodePolicies) keeps(node *corev1.Node, stored *v1alpha1.NodeProxyRules) bool {
	return slices.ContainsFunc(p.invalid, func(policy policies.NodePolicy) bool {
		return policy.Retains(node.Labels, stored.Spec.Policies)
	})
}

// reportNodes reports what is wrong with the resulting settings, and which fields of policies, and
// which policies, have no effect.
func (r *renderer) reportNodes(p *nodePolicies) {
	lost := map[loss]int{}
	for _, resolution := range p.ordered() {
		names := p.resolved[resolution]
		if resolution.Invalid != nil {
			r.problem("%s: together with the others that apply, the settings of %d nodes are not valid, and these keep theirs, new ones do without it (%s): %v",
				blamed(resolution.Blamed), len(names), some(names), resolution.Invalid)
		}
		for policy, fields := range resolution.Overridden {
			for field, winner := range fields {
				lost[loss{policy, field, winner}] += len(names)
			}
		}
	}
	for _, l := range slices.SortedFunc(maps.Keys(lost), loss.compare) {
		r.note("NodeProxyPolicy %s: spec.settings.%s is set by NodeProxyPolicy %s on %d nodes", l.policy, l.field, l.winner, lost[l])
	}
	for _, name := range slices.Sorted(maps.Keys(p.selected)) {
		if p.selected[name] == 0 {
			r.note("NodeProxyPolicy %s selects no node", name)
		}
	}
}

// ordered are the resolutions by the first of their nodes.
func (p *nodePolicies) ordered() []*policies.NodeResolution {
	return slices.SortedFunc(maps.Keys(p.resolved), func(a, b *policies.NodeResolution) int {
		return cmp.Compare(p.resolved[a][0], p.resolved[b][0])
	})
}

// blamed names those to be corrected.
func blamed(names []string) string {
	if len(names) == 1 && names[0] == policies.Base {
		return "NodeProxy " + v1alpha1.NodeProxyName
	}
	return "NodeProxyPolicy " + strings.Join(names, " and ")
}

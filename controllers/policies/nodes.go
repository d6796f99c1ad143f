package policies

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// Base is the name of the settings under all policies: those of the NodeProxy.
const Base = ""

// unions are the settings that are set and overridden as a whole.
func unions() map[string]bool { return map[string]bool{"detectLocal": true, "nodePorts": true} }

// NodePolicy is the part of a policy for nodes that decides about settings.
type NodePolicy struct {
	Name     string
	Priority int32
	// Selector selects Nodes by their labels.
	Selector labels.Selector
	// Settings are those that the policy sets; nil fields are left to others.
	Settings *v1alpha1.ProxySettings
}

// Selects reports whether the policy selects a Node with these labels. A policy with an invalid
// selector selects none.
func (p *NodePolicy) Selects(nodeLabels map[string]string) bool {
	return p.Selector != nil && p.Selector.Matches(labels.Set(nodeLabels))
}

// Keeps reports whether a Node with these labels, whose settings were shaped by policies of these
// names, keeps its settings while the policy is invalid.
func (p *NodePolicy) Keeps(nodeLabels map[string]string, shaped []string) bool {
	return slices.Contains(shaped, p.Name) || p.Selects(nodeLabels)
}

// NodeResolution is what policies result in for the settings of some nodes.
type NodeResolution struct {
	// Settings are complete and valid. Nil: they are not valid, and nodes keep theirs.
	Settings *render.Settings
	// Invalid says which fields are wrong, and Blamed are the policies to be corrected: those
	// without any one of which the settings would be valid; if there is none, all that set
	// something; Base if the settings under all policies are wrong.
	Invalid error
	Blamed  []string
	// Matching are the policies that select the nodes, and Policies those of them that set a field,
	// each the strongest first.
	Matching, Policies []string
	// Owners are the names of those that set each field, by its path, such as "ipvs.scheduler".
	Owners map[string]string
	// Overridden are, for each policy, the fields that it would set differently, with the name of
	// the one that sets them.
	Overridden map[string]map[string]string
}

// Nodes resolves the settings of nodes. Nodes that the same policies select share one resolution.
// It is not for concurrent use.
type Nodes struct {
	base     *v1alpha1.ProxySettings
	policies []NodePolicy // the strongest first
	known    map[string]*NodeResolution
}

// NewNodes takes the settings under all policies, nil for none, and the policies in any order. It
// retains both.
func NewNodes(base *v1alpha1.ProxySettings, policies []NodePolicy) *Nodes {
	sorted := slices.SortedFunc(slices.Values(policies), func(a, b NodePolicy) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Name, b.Name))
	})
	return &Nodes{base: base, policies: sorted, known: map[string]*NodeResolution{}}
}

// Resolve returns the settings of a Node with these labels. The result is read-only.
func (n *Nodes) Resolve(nodeLabels map[string]string) *NodeResolution {
	matching := make([]byte, (len(n.policies)+7)/8) // a bit for each policy
	for i := range n.policies {
		if n.policies[i].Selects(nodeLabels) {
			matching[i/8] |= 1 << (i % 8)
		}
	}
	if r, found := n.known[string(matching)]; found {
		return r
	}
	r := n.resolve(n.selecting(nodeLabels))
	n.known[string(matching)] = r
	return r
}

// ResolveNew is Resolve for a Node without settings that it could keep if the desired ones are not
// valid: without any, its pods would have no Services. It then leaves out the policies to blame.
// Settings are nil only if NodeProxy is invalid.
func (n *Nodes) ResolveNew(nodeLabels map[string]string) *NodeResolution {
	r := n.Resolve(nodeLabels)
	selected := n.selecting(nodeLabels)
	for r.Invalid != nil && !slices.Contains(r.Blamed, Base) {
		selected = slices.DeleteFunc(selected, func(p NodePolicy) bool { return slices.Contains(r.Blamed, p.Name) })
		r = n.resolve(selected)
	}
	return r
}

// selecting returns the policies that select a Node with these labels, the strongest first.
func (n *Nodes) selecting(nodeLabels map[string]string) []NodePolicy {
	var out []NodePolicy
	for _, p := range n.policies {
		if p.Selects(nodeLabels) {
			out = append(out, p)
		}
	}
	return out
}

// resolve resolves the settings of nodes that these policies select, the strongest
// first.
func (n *Nodes) resolve(selected []NodePolicy) *NodeResolution {
	r := n.merge(selected)
	if r.Invalid != nil {
		r.Blamed = n.blamed(selected, r.Policies)
	}
	return r
}

// merge merges the policies, the strongest first, and the settings under all.
func (n *Nodes) merge(selected []NodePolicy) *NodeResolution {
	r := &NodeResolution{Owners: map[string]string{}, Overridden: map[string]map[string]string{}}
	all := &layers{whole: unions(), owners: r.Owners}
	merged := &v1alpha1.ProxySettings{}
	for _, p := range selected {
		r.Matching = append(r.Matching, p.Name)
		if p.Settings == nil {
			continue
		}
		before := len(all.owners)
		if lost := all.add(p.Name, merged, p.Settings); len(lost) > 0 {
			r.Overridden[p.Name] = lost
		}
		if len(all.owners) > before {
			r.Policies = append(r.Policies, p.Name)
		}
	}
	if n.base != nil {
		all.add(Base, merged, n.base)
	}
	r.Settings, r.Invalid = render.CompleteSettings(merged)
	return r
}

// blamed returns the policies because of which the settings are not valid. Shaping are the policies
// that set something.
func (n *Nodes) blamed(selected []NodePolicy, shaping []string) []string {
	if n.merge(nil).Invalid != nil {
		return []string{Base}
	}
	var out []string
	for _, name := range shaping {
		rest := slices.DeleteFunc(slices.Clone(selected), func(p NodePolicy) bool { return p.Name == name })
		if n.merge(rest).Invalid == nil {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		return shaping
	}
	return out
}

// Causes returns the policies by which complete settings change to others: for each field that
// differs the one that sets it now, Base if none does. Sorted.
func Causes(before, after *v1alpha1.ProxySettings, owners map[string]string) []string {
	causes := map[string]struct{}{}
	for _, path := range differing(before, after, unions()) {
		causes[owners[path]] = struct{}{} // Base, if no policy sets it
	}
	return slices.Sorted(maps.Keys(causes))
}

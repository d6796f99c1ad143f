package policies

import (
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// Base is the name of the settings under all policies: those of the NodeProxy.
const Base = ""

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

// Retains reports whether a Node with these labels, whose settings were shaped by policies of these
// names, retains its settings while the policy is invalid.
func (p *NodePolicy) Retains(nodeLabels map[string]string, shaped []string) bool {
	return slices.Contains(shaped, p.Name) || p.Selects(nodeLabels)
}

// NodePolicyOf parses a policy. The errors name every field that is invalid by itself; conflicts
// with other policies or NodeProxy show when settings are resolved. A policy with errors must not
// be used; its Selector is nil if it is invalid.
func NodePolicyOf(p *v1alpha1.NodeProxyPolicy) (NodePolicy, field.ErrorList) {
	spec := field.NewPath("spec")
	selector, errs := Selector(p.Spec.NodeSelector, spec.Child("nodeSelector"))
	settings := (*v1alpha1.ProxySettings)(&p.Spec.Settings)
	out := NodePolicy{Name: p.Name, Priority: ptr.Deref(p.Spec.Priority, 0), Selector: selector, Settings: settings}
	return out, append(errs, v1alpha1.ValidateSettings(alone(settings))...)
}

// alone completes settings so that only what the policy sets can be invalid: of the two intervals
// that must fit each other, one may be set elsewhere.
func alone(written *v1alpha1.ProxySettings) *v1alpha1.ProxySettings {
	complete := v1alpha1.CompleteSettings(written)
	if written.Sync == nil || written.Sync.MinIntervalMilliseconds == nil {
		complete.Sync.MinIntervalMilliseconds = new(int32(0))
	}
	if written.Sync == nil || written.Sync.VerifyIntervalSeconds == nil {
		complete.Sync.VerifyIntervalSeconds = new(int32(math.MaxInt32))
	}
	return complete
}

// NodeResolution is what policies result in for the settings of some nodes.
type NodeResolution struct {
	Merged
	// Settings are complete and valid. Nil: they are invalid, and nodes retain theirs.
	Settings *render.Settings
	// Invalid names the wrong fields, and Blamed the policies to be corrected: those without any one
	// of which the settings would be valid; if there is none, all that set something; Base if the
	// settings under all policies are wrong.
	Invalid error
	Blamed  []string
}

// Nodes resolves the settings of nodes. Nodes that the same policies select share one resolution.
type Nodes struct {
	base *v1alpha1.ProxySettings
	*resolver[NodePolicy, *NodeResolution]
}

// NewNodes takes the settings under all policies, nil for none, and the policies in any order. It
// retains both.
func NewNodes(base *v1alpha1.ProxySettings, policies []NodePolicy) *Nodes {
	return &Nodes{base, newResolver[NodePolicy, *NodeResolution](policies, func(p NodePolicy) (int32, string) { return p.Priority, p.Name })}
}

// Resolve returns the settings of a Node with these labels. The result is read-only.
func (n *Nodes) Resolve(nodeLabels map[string]string) *NodeResolution {
	return n.resolve(func(p NodePolicy) bool { return p.Selects(nodeLabels) }, n.merge)
}

// ResolveNew is Resolve for a Node without settings that it could retain if the desired ones are
// invalid: without any, its pods would have no Services. It then leaves out the policies to blame.
// Settings are nil only if NodeProxy is invalid.
func (n *Nodes) ResolveNew(nodeLabels map[string]string) *NodeResolution {
	r := n.Resolve(nodeLabels)
	selected := n.selecting(func(p NodePolicy) bool { return p.Selects(nodeLabels) })
	for r.Invalid != nil && !slices.Contains(r.Blamed, Base) {
		selected = slices.DeleteFunc(selected, func(p NodePolicy) bool { return slices.Contains(r.Blamed, p.Name) })
		r = n.merge(selected)
	}
	return r
}

// merge resolves the settings of nodes that these policies select, the strongest first.
func (n *Nodes) merge(selected []NodePolicy) *NodeResolution {
	r := n.unblamed(selected)
	if r.Invalid != nil {
		r.Blamed = n.blamed(selected, r.Policies)
	}
	return r
}

// unblamed is merge without Blamed.
func (n *Nodes) unblamed(selected []NodePolicy) *NodeResolution {
	r, settings := &NodeResolution{Merged: newMerged()}, &v1alpha1.ProxySettings{}
	for _, p := range selected {
		r.add(p.Name, settings, p.Settings)
	}
	if n.base != nil {
		r.overlay(Base, settings, n.base)
	}
	r.Settings, r.Invalid = render.CompleteSettings(settings)
	return r
}

// blamed returns the policies because of which the settings are not valid. Shaping are the policies
// that set something.
func (n *Nodes) blamed(selected []NodePolicy, shaping []string) []string {
	if n.unblamed(nil).Invalid != nil {
		return []string{Base}
	}
	var out []string
	for _, name := range shaping {
		rest := slices.DeleteFunc(slices.Clone(selected), func(p NodePolicy) bool { return p.Name == name })
		if n.unblamed(rest).Invalid == nil {
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
	causes := sets.New[string]()
	for _, path := range differing(before, after) {
		causes.Insert(owners[path]) // Base, if no policy sets it
	}
	return sets.List(causes)
}

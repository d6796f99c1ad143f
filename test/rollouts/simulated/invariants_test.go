package simulated

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
)

// returning is for how long a Node that has come back may still count as absent: the
// controller has to hear of it first.
const returning = time.Second

// grant is a change of settings that a node was given.
type grant struct {
	v1alpha1.SettingsGrant
	node string
	// available: the node did what it carried before.
	available bool
	// free: nothing was at risk there.
	free bool
}

// budget is what some generation of a NodeProxy or a policy asks for.
type budget struct {
	selector labels.Selector
	rollout  v1alpha1.RolloutSettings
}

// checker goes through a history, and finds what must not be in it.
type checker struct {
	byHand   map[uint64]bool
	nodes    map[string]*corev1.Node
	returned map[string]time.Time // when a Node of a name that there was came again
	known    map[string]bool      // names of Nodes that there were
	rules    map[string]*v1alpha1.NodeProxyRules
	budgets  map[v1alpha1.Cause]budget
	former   map[string]*v1alpha1.NodeProxyPolicy
	carried  map[string]grant // what each node was given last
	down     map[string]bool  // nodes that what they were given has made unavailable
	edited   map[string]bool  // rules that the test has edited, and the controller not put back yet
	grants   []grant          // in order
	broken   []string
}

// check returns the grants of a history in their order, and what was broken.
func check(moments []moment, byHand map[uint64]bool) *checker {
	c := &checker{
		byHand: byHand, nodes: map[string]*corev1.Node{}, returned: map[string]time.Time{}, known: map[string]bool{},
		rules: map[string]*v1alpha1.NodeProxyRules{}, budgets: map[v1alpha1.Cause]budget{}, former: map[string]*v1alpha1.NodeProxyPolicy{},
		carried: map[string]grant{}, down: map[string]bool{}, edited: map[string]bool{},
	}
	for _, m := range moments {
		switch o := m.object.(type) {
		case *corev1.Node:
			c.node(o, m)
		case *v1alpha1.NodeProxy:
			b := budget{selector: labels.Everything()}
			if o.Spec.Rollout != nil {
				b.rollout = *o.Spec.Rollout
			}
			c.budgets[v1alpha1.Cause{Name: policies.Base, Generation: o.Generation}] = b
			c.leftAlone(o.Kind+" "+o.Name, o.ManagedFields)
		case *v1alpha1.NodeProxyPolicy:
			c.policy(o, m)
		case *v1alpha1.NodeProxyRules:
			c.rendered(o, m)
		}
	}
	return c
}

func (c *checker) breaks(m moment, format string, args ...any) {
	c.broken = append(c.broken, fmt.Sprintf("%d %s: %s", m.version, m.at.Format("15:04:05.000"), fmt.Sprintf(format, args...)))
}

func (c *checker) node(node *corev1.Node, m moment) {
	if m.gone {
		delete(c.nodes, node.Name)
		return
	}
	if c.nodes[node.Name] == nil && c.known[node.Name] {
		c.returned[node.Name] = m.at
	}
	c.nodes[node.Name], c.known[node.Name] = node, true
}

func (c *checker) policy(p *v1alpha1.NodeProxyPolicy, m moment) {
	former := c.former[p.Name]
	c.former[p.Name] = p
	if m.gone {
		delete(c.former, p.Name)
		return
	}
	b := budget{selector: labels.Nothing()}
	if selector, errs := policies.Selector(p.Spec.NodeSelector, nil); len(errs) == 0 {
		b.selector = selector
	}
	if p.Spec.Rollout != nil {
		b.rollout = *p.Spec.Rollout
	}
	c.budgets[v1alpha1.Cause{Name: p.Name, Generation: p.Generation}] = b
	c.leftAlone("policy "+p.Name, p.ManagedFields)
	s := p.Status
	if s.Updated > s.Nodes || s.Programmed > s.Updated {
		c.breaks(m, "policy %s: status counts %d nodes, %d updated, %d programmed", p.Name, s.Nodes, s.Updated, s.Programmed)
	}
	if s.ObservedGeneration > p.Generation || former != nil && former.UID == p.UID && s.ObservedGeneration < former.Status.ObservedGeneration {
		c.breaks(m, "policy %s of generation %d: status.observedGeneration is %d", p.Name, p.Generation, s.ObservedGeneration)
	}
	for _, condition := range s.Conditions {
		if condition.ObservedGeneration != s.ObservedGeneration {
			c.breaks(m, "policy %s: condition %s is about generation %d, the status about %d", p.Name, condition.Type, condition.ObservedGeneration, s.ObservedGeneration)
		}
	}
}

// leftAlone: of what people write, the controller writes the status alone.
func (c *checker) leftAlone(what string, fields []metav1.ManagedFieldsEntry) {
	for _, f := range fields {
		if f.Manager == theController && f.Subresource != "status" {
			c.broken = append(c.broken, fmt.Sprintf("%s: the controller has written %s", what, f.FieldsV1))
		}
	}
}

func (c *checker) rendered(rules *v1alpha1.NodeProxyRules, m moment) {
	former := c.rules[rules.Name]
	if m.gone {
		delete(c.rules, rules.Name)
		delete(c.carried, rules.Name)
		delete(c.down, rules.Name)
		return
	}
	c.rules[rules.Name] = rules
	switch {
	case c.byHand[m.version]:
		c.edited[rules.Name] = true
	case former == nil:
		if g := grantOf(rules); g == nil || g.Revision != rules.Spec.SettingsRevision {
			c.breaks(m, "%s is new, and has settings without a grant", rules.Name)
		} else {
			c.carried[rules.Name] = grant{SettingsGrant: *g, node: rules.Name, free: true}
		}
	case settingsChanged(former, rules):
		c.granted(former, rules, m)
	case former.Annotations[v1alpha1.AnnotationRollout] != rules.Annotations[v1alpha1.AnnotationRollout]:
		c.renewed(former, rules, m)
	}
	if available(rules) {
		delete(c.down, rules.Name)
	}
}

// renewed checks a grant of the settings that a node has already. It is written where
// others set them than before, or because a new generation, which changes nothing there,
// gives the node another chance to apply them.
func (c *checker) renewed(former, rules *v1alpha1.NodeProxyRules, m moment) {
	was, is, last := grantOf(former), grantOf(rules), c.carried[rules.Name]
	edited := c.edited[rules.Name]
	delete(c.edited, rules.Name)
	chance := !isApplied(former) && !slices.Equal(is.By, was.By)
	otherwise := edited || !slices.Equal(former.Spec.Policies, rules.Spec.Policies) || !maps.Equal(is.Owners, was.Owners)
	if !chance && !otherwise {
		c.breaks(m, "%s has a new grant (%s instead of %s) of the settings that it had", rules.Name,
			rules.Annotations[v1alpha1.AnnotationRollout], former.Annotations[v1alpha1.AnnotationRollout])
	}
	if last.SettingsGrant = *is; last.node != "" {
		c.carried[rules.Name] = last
	}
}

func settingsChanged(a, b *v1alpha1.NodeProxyRules) bool {
	return a.Spec.SettingsRevision != b.Spec.SettingsRevision || !equality.Semantic.DeepEqual(a.Spec.Settings, b.Spec.Settings)
}

func grantOf(rules *v1alpha1.NodeProxyRules) *v1alpha1.SettingsGrant {
	g := &v1alpha1.SettingsGrant{}
	if json.Unmarshal([]byte(rules.Annotations[v1alpha1.AnnotationRollout]), g) != nil {
		return nil
	}
	return g
}

// isApplied reports whether the agent reports what it was given.
func isApplied(rules *v1alpha1.NodeProxyRules) bool {
	return rules.Status.SettingsRevision == rules.Spec.SettingsRevision
}

// available reports whether a node does what it was given; in Audit, has compared.
func available(rules *v1alpha1.NodeProxyRules) bool {
	p := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
	return isApplied(rules) && p != nil && (p.Status == metav1.ConditionTrue || p.Reason == v1alpha1.ReasonAuditDiffers)
}

// free reports whether nothing is at risk at a node: there is no such Node, no agent
// has ever reported, or another proxy serves it.
func (c *checker) free(rules *v1alpha1.NodeProxyRules, m moment) bool {
	return c.nodes[rules.Name] == nil || m.at.Sub(c.returned[rules.Name]) < returning || rules.Status.Agent == nil ||
		meta.IsStatusConditionTrue(rules.Status.Conditions, v1alpha1.ConditionConflictingProxy)
}

// granted checks a change of settings.
func (c *checker) granted(former, rules *v1alpha1.NodeProxyRules, m moment) {
	name := rules.Name
	given := grantOf(rules)
	if given == nil || given.Revision != rules.Spec.SettingsRevision {
		c.breaks(m, "%s was given settings %s by the grant %q", name, rules.Spec.SettingsRevision, rules.Annotations[v1alpha1.AnnotationRollout])
		return
	}
	edited := c.edited[name]
	delete(c.edited, name)
	if last := c.carried[name]; edited && last.Revision == given.Revision && slices.Equal(last.By, given.By) {
		last.SettingsGrant = *given // what another user changed is put back, and has its time again
		c.carried[name] = last
		return
	}
	g := grant{SettingsGrant: *given, node: name, available: available(former), free: c.free(former, m)}
	if former.Spec.SettingsRevision == rules.Spec.SettingsRevision && !g.free {
		c.breaks(m, "%s was given other settings of the same revision", name)
	}
	c.grants = append(c.grants, g)
	c.carried[name] = g
	if g.free {
		return
	}
	if g.available {
		c.down[name] = true
	}
	if len(g.By) == 0 {
		c.breaks(m, "%s was given settings without a change", name)
	}
	for _, cause := range g.By {
		b, found := c.budgets[cause]
		if !found {
			c.breaks(m, "%s was given a change by %q of generation %d, which there never was", name, cause.Name, cause.Generation)
			continue
		}
		c.within(g, cause, b, m)
	}
}

// within checks that a grant keeps to one of its budgets.
func (c *checker) within(g grant, cause v1alpha1.Cause, b budget, m moment) {
	who := fmt.Sprintf("%q of generation %d", cause.Name, cause.Generation)
	if b.rollout.Paused != nil && *b.rollout.Paused {
		c.breaks(m, "%s was given a change by %s, which is paused", g.node, who)
	}
	deadline := 600 * time.Second
	if s := b.rollout.ProgressDeadlineSeconds; s != nil {
		deadline = time.Duration(*s) * time.Second
	}
	selected, down, inFlight := 0, []string{}, []string{}
	for _, name := range slices.Sorted(maps.Keys(c.rules)) {
		rules, last := c.rules[name], c.carried[name]
		if name != g.node && c.free(rules, m) {
			continue
		}
		node := c.nodes[name]
		isSelected := node != nil && b.selector.Matches(labels.Set(node.Labels))
		if isSelected {
			selected++
		}
		if c.down[name] && (isSelected || slices.Contains(last.By, cause)) { // or it was given that it is not selected any more
			down = append(down, name)
		}
		if slices.Contains(last.By, cause) && !isApplied(rules) && !last.free {
			inFlight = append(inFlight, name)
			// Grants record when they are written, in whole seconds.
			if name != g.node && g.Time.Sub(last.Time.Time) >= deadline+time.Second {
				c.breaks(m, "%s was given a change by %s at %s, though %s has been without it since %s, for %s or more",
					g.node, who, g.Time.Format(time.TimeOnly), name, last.Time.Format(time.TimeOnly), deadline)
			}
		}
	}
	most := allowance(b.rollout.MaxUnavailable, selected)
	if g.available && len(down) > most {
		c.breaks(m, "with %s, given a change by %s, %d nodes are unavailable for changes, of %d selected at most %d may be: %q", g.node, who, len(down), selected, most, down)
	}
	if !g.available && len(inFlight) > most {
		c.breaks(m, "with %s, given a change by %s, %d nodes have not applied it, of %d selected at most %d may be: %q", g.node, who, len(inFlight), selected, most, inFlight)
	}
}

// allowance is what a budget allows: one unless it sets another number, of a percentage
// what it is rounded down, but one at least.
func allowance(most *intstr.IntOrString, nodes int) int {
	if most == nil {
		return 1
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(most, nodes, false)
	if err != nil {
		panic(err) // the API has taken it
	}
	return max(1, n)
}

func programmedReason(rules *v1alpha1.NodeProxyRules) string {
	p := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
	if p == nil {
		return "not reported"
	}
	return fmt.Sprintf("Programmed %s %s", p.Status, p.Reason)
}

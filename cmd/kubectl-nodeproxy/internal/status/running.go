package status

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/hints"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/notes"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// podNotReady and podMissing are what is wrong with an agent's pod.
const (
	podNotReady = "agent's pod not ready"
	podMissing  = "no pod of the agent"
)

// noController is the problem that no controller works; nil: one does, as far as can
// be seen.
func noController(o *cluster.Objects, docs hints.Docs) *Problem {
	why, _ := o.NoController()
	if why == "" || unreadPods(o) {
		return nil
	}
	return &Problem{What: "no controller runs", Message: docs.See(why+": changes do not get to the nodes, and nobody looks whether agents live", "troubleshooting.md#nodeproxycontrollerwithoutleader")}
}

// ofPods lists the nodes whose agent's pod does not do its work.
func ofPods(o *cluster.Objects, nodes []*v1alpha1.NodeProxyRules) map[string][]found {
	all := map[string][]found{}
	if unreadPods(o) {
		return all
	}
	for _, t := range o.AgentTroubles(nodes) {
		what := podMissing
		if t.Pod != "" {
			what = podNotReady
		}
		all[t.Node] = append(all[t.Node], found{rank: what, what: what, NodeProblem: NodeProblem{Name: t.Node, Since: t.Since, Message: t.Why}})
	}
	return all
}

// remarks are what else is good to know: what cannot be told about what runs.
func remarks(o *cluster.Objects, nodes []*v1alpha1.NodeProxyRules) []string {
	var out, fresh []string
	for _, n := range nodes {
		if notes.IsNew(n, o.Time) {
			fresh = append(fresh, n.Name)
		}
	}
	if len(fresh) > 0 {
		out = append(out, fmt.Sprintf("new, and no agent has reported from there yet, as its image may still be pulled: %s", output.Some(fresh, maxNames)))
	}
	out = append(out, buts(nodes)...)
	if unreadPods(o) {
		return out
	}
	if _, elsewhere := o.NoController(); elsewhere && o.NodeProxy != nil {
		out = append(out, "no pod of nodeproxy is in the cluster: if no controller runs outside of it either, changes do not arrive, and nobody looks whether agents live")
	}
	return out
}

// maxButs bounds what nodes say besides that they are programmed.
const maxButs = 10

// buts are what nodes that are programmed say besides: each text with its nodes.
func buts(nodes []*v1alpha1.NodeProxyRules) []string {
	on := map[string][]string{}
	for _, n := range nodes {
		c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionProgrammed)
		if c == nil || c.Status != metav1.ConditionTrue {
			continue
		}
		if _, text, but := strings.Cut(c.Message, v1alpha1.MessageBut); but {
			on[text] = append(on[text], n.Name)
		}
	}
	var out []string
	for i, text := range slices.Sorted(maps.Keys(on)) {
		if i == maxButs {
			return append(out, fmt.Sprintf("and %d more texts of nodes that are programmed, but", len(on)-maxButs))
		}
		out = append(out, fmt.Sprintf("on %s: programmed, but: %s", output.Some(on[text], 5), text))
	}
	return out
}

// unreadPods reports whether pods could not be read.
func unreadPods(o *cluster.Objects) bool {
	return slices.ContainsFunc(o.Unread, func(u cluster.Unread) bool { return u.Kind == cluster.Pods })
}

package status

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/hints"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/notes"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// Problem is something that is not well, on some nodes or with the whole cluster.
type Problem struct {
	// What is a condition and its reason, such as Programmed False: Failed.
	What string `json:"what"`
	// Nodes are the nodes on which it is so, the first ones first. None: it is not
	// about nodes.
	Nodes []NodeProblem `json:"nodes,omitempty"`
	// Since is when it began, on the first node; absent: unknown.
	Since metav1.Time `json:"since,omitzero"`
	// Message says more where it is not about nodes.
	Message string `json:"message,omitempty"`
}

// NodeProblem is what is not well on one node.
type NodeProblem struct {
	Name    string      `json:"name"`
	Since   metav1.Time `json:"since,omitzero"`
	Message string      `json:"message,omitempty"`
}

// severity ranks what may be wrong with a node, the worst first.
func severity() []string {
	return []string{
		v1alpha1.ReasonFailed, v1alpha1.ConditionAccepted, v1alpha1.ReasonAgentNotResponding, podMissing, podNotReady, noReport, notInForce, v1alpha1.ReasonPending,
		v1alpha1.ReasonConflictingProxy, v1alpha1.ReasonRemoved, v1alpha1.ReasonAuditDiffers, v1alpha1.ReasonSomeServicesRefused,
		v1alpha1.ReasonHeld, v1alpha1.ConditionConntrackPressure, v1alpha1.ConditionModeFallback, v1alpha1.ConditionDrifted,
	}
}

// notInForce is what is wrong with a node that does not do yet what it has been told for
// a while.
const notInForce = "rules not in force"

// found is one thing that is wrong with one node.
type found struct {
	rank string
	what string
	NodeProblem
}

func problems(o *cluster.Objects, nodes []*v1alpha1.NodeProxyRules, docs hints.Docs) []Problem {
	list := ofCluster(o, nodes, docs)
	pods := ofPods(o, nodes)
	groups := map[string]*Problem{}
	ranks := map[string]int{}
	var order []string
	for _, n := range nodes {
		for _, f := range append(wrong(n, o.Time), pods[n.Name]...) {
			g := groups[f.what]
			if g == nil {
				g = &Problem{What: f.what}
				groups[f.what], ranks[f.what] = g, slices.Index(severity(), f.rank)
				order = append(order, f.what)
			}
			g.Nodes = append(g.Nodes, f.NodeProblem)
		}
	}
	slices.SortStableFunc(order, func(a, b string) int { return cmp.Or(cmp.Compare(ranks[a], ranks[b]), cmp.Compare(a, b)) })
	for _, what := range order {
		g := groups[what]
		slices.SortStableFunc(g.Nodes, func(a, b NodeProblem) int { return a.Since.Compare(b.Since.Time) })
		g.Since = g.Nodes[0].Since // unknown, if it is of any
		list = append(list, *g)
	}
	return list
}

// wrong lists what is not well on a node.
func wrong(n *v1alpha1.NodeProxyRules, now time.Time) []found {
	programmed := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionProgrammed)
	if notes.IsNew(n, now) {
		return nil // of which there is a remark
	}
	if programmed == nil {
		return []found{{rank: noReport, what: "no report of an agent", NodeProblem: NodeProblem{
			Name: n.Name, Since: n.CreationTimestamp, Message: "see whether one runs there: " + hints.Namespace("").Agents(),
		}}}
	}
	if programmed.Reason == v1alpha1.ReasonAgentNotResponding {
		return []found{ofCondition(n, programmed, programmed.Reason)} // what else was reported is old
	}
	var list []found
	accepted := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionAccepted)
	if a := n.Status.Agent; notes.TooOld(n) != "" {
		p := NodeProblem{Name: n.Name, Message: fmt.Sprintf("its agent %s does not know format %d of its rules, only %v: they stay as they were until it is upgraded", a.Version, n.Spec.FormatVersion, a.KnownFormats())}
		if accepted != nil && accepted.Status == metav1.ConditionFalse {
			p.Since = accepted.LastTransitionTime
		}
		list = append(list, found{rank: v1alpha1.ConditionAccepted, what: "agent too old", NodeProblem: p})
	} else if accepted != nil && accepted.Status == metav1.ConditionFalse {
		list = append(list, ofCondition(n, accepted, v1alpha1.ConditionAccepted))
	} else if programmed.Status != metav1.ConditionTrue ||
		programmed.Reason == v1alpha1.ReasonSomeServicesRefused || programmed.Reason == v1alpha1.ReasonHeld {
		list = append(list, ofCondition(n, programmed, programmed.Reason))
	}
	if notes.Unmaintained(n) {
		audit := ofCondition(n, programmed, v1alpha1.ReasonAuditDiffers)
		audit.what = "Audit, and nothing else proxies"
		list = []found{audit} // which says whether it differs, too
	}
	list = append(list, behind(n, programmed, now)...)
	for _, abnormal := range []string{
		v1alpha1.ConditionConflictingProxy, v1alpha1.ConditionConntrackPressure, v1alpha1.ConditionModeFallback, v1alpha1.ConditionDrifted,
	} {
		c := meta.FindStatusCondition(n.Status.Conditions, abnormal)
		if c == nil || c.Status != metav1.ConditionTrue || abnormal == programmed.Reason {
			continue
		}
		list = append(list, ofCondition(n, c, abnormal))
	}
	if c, pressed := cluster.ConntrackPressed(&n.Status); pressed && c == nil {
		t := n.Status.Conntrack
		list = append(list, found{rank: v1alpha1.ConditionConntrackPressure, what: "connection tracking nearly full", NodeProblem: NodeProblem{
			Name: n.Name, Message: fmt.Sprintf("%d of %d connections (%d%%), %s dropped since the node started: a full table drops new connections; raise spec.settings.conntrack.maxPerCore or min", t.Entries, t.Max, t.UsagePercent, output.Plural(int(t.Drop), "packet")),
		}})
	}
	return list
}

// behind tells of a node that does not do yet what it has been told for a while: of its
// settings unless it says itself why. What of Services it has not applied is not to be seen here.
func behind(n *v1alpha1.NodeProxyRules, programmed *metav1.Condition, now time.Time) []found {
	what := notes.Stale(n, now)
	if what == "" && notes.Current(n) && programmed.Status == metav1.ConditionTrue {
		what = notes.OldSettings(n, now)
	}
	if what == "" {
		return nil
	}
	return []found{{rank: notInForce, what: notInForce, NodeProblem: NodeProblem{
		Name: n.Name, Since: metav1.NewTime(notes.Written(n)), Message: what + "; see its pod and log: " + hints.Namespace("").Agent(""),
	}}}
}

// ofCondition tells of a condition, and since when its status is what it is. Of a node
// that is programmed that is not since when it is so with these restrictions.
func ofCondition(n *v1alpha1.NodeProxyRules, c *metav1.Condition, rank string) found {
	p := NodeProblem{Name: n.Name, Since: c.LastTransitionTime, Message: c.Message}
	if c.Type == v1alpha1.ConditionProgrammed && c.Status == metav1.ConditionTrue {
		p.Since = metav1.Time{}
	}
	return found{rank: rank, what: name(c), NodeProblem: p}
}

func name(c *metav1.Condition) string { return fmt.Sprintf("%s %s: %s", c.Type, c.Status, c.Reason) }

// ofCluster lists what is not well and not about single nodes.
func ofCluster(o *cluster.Objects, nodes []*v1alpha1.NodeProxyRules, docs hints.Docs) []Problem {
	p := o.NodeProxy
	var list []Problem
	down := noController(o, docs)
	if down != nil {
		list = append(list, *down)
	}
	if p == nil {
		if len(nodes) == 0 {
			return list
		}
		return append(list, Problem{What: "no NodeProxy", Message: docs.See("it has been deleted: Services are still followed, but settings and policies stay as they are, and new nodes get no rules; if that was a mistake, apply the one that you had", "removal.md#with-retain")})
	}
	conditions := p.Status.Conditions
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	deployed := meta.FindStatusCondition(conditions, v1alpha1.ConditionAgentsDeployed)
	waits := func(c *metav1.Condition) bool { // for the pods of nodes that are new
		return c.Status != metav1.ConditionTrue && c.Reason == v1alpha1.ReasonAgentPodsNotReady && notes.OnlyNew(nodes, o.Time)
	}
	switch {
	case ready == nil && down != nil:
		// which is why
	case ready == nil:
		list = append(list, Problem{What: "no controller", Since: p.CreationTimestamp, Message: "no controller has worked on NodeProxy since it was created: does one run? (" + hints.Namespace("").Controllers() + ")"})
	case p.Status.ObservedGeneration != p.Generation:
		list = append(list, Problem{What: "NodeProxy has changed", Message: "the controller has not looked at the newest change yet: if that lasts for more than a few seconds, none runs (" + hints.Namespace("").Controllers() + ")"})
	case waits(ready): // of which there is a remark
	case ready.Status != metav1.ConditionTrue && !aboutOthers(ready.Reason):
		list = append(list, Problem{What: "NodeProxy " + name(ready), Since: ready.LastTransitionTime, Message: ready.Message})
	}
	if deployed != nil && deployed.Status != metav1.ConditionTrue && deployed.Reason != v1alpha1.ReasonAgentsUpdating && !waits(deployed) && (ready == nil || ready.Reason != deployed.Reason) {
		list = append(list, Problem{What: "NodeProxy " + name(deployed), Since: deployed.LastTransitionTime, Message: deployed.Message})
	}
	if lagging := p.Status.Nodes.Lagging; lagging > 0 {
		list = append(list, Problem{What: "agents that lag", Message: docs.See("what has changed more than a minute ago is not applied on "+output.Plural(int(lagging), "node"), "troubleshooting.md#nodeproxyagentslagging")})
	}
	return list
}

// aboutOthers reports whether the reason why NodeProxy is not ready is told of in
// another place: with the nodes, or with the changes.
func aboutOthers(reason string) bool {
	return slices.Contains([]string{
		v1alpha1.ReasonNodesNotProgrammed, v1alpha1.ReasonProgressing, v1alpha1.ReasonPaused, v1alpha1.ReasonRolloutStopped,
	}, reason)
}

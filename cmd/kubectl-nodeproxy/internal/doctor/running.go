package doctor

import (
	"fmt"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/notes"
)

// keyNoController is the key of the finding that no controller runs.
const keyNoController = "no controller"

// running looks at the pods of the controller and of the agents. That an agent is silent
// is what the controller finds out: without one, conditions say what was so before.
func (e *examination) running() {
	down, elsewhere := e.NoController()
	switch {
	case down != "":
		e.add(Finding{
			Severity: Problem, Name: "NoControllerRuns", Check: CheckController, key: keyNoController, passing: true,
			What: down + ": changes of Services do not get to the nodes, and what the nodes report may be old, as nobody looks whether their agents live",
			Do:   e.doController(),
		})
	case elsewhere && e.NodeProxy != nil:
		e.remark("no pod of nodeproxy is in the cluster: if no controller runs outside of it either, changes do not arrive, and nobody looks whether agents live")
	}
	for _, t := range e.AgentTroubles(e.nodes) {
		e.add(e.agentTrouble(t))
	}
}

func (e *examination) agentTrouble(t cluster.AgentTrouble) Finding {
	f := Finding{
		Severity: Problem, Name: "AgentPodMissing", Check: CheckNodes, Nodes: []string{t.Node}, key: nodeKey(t.Node, "pods"), passing: true,
		What: t.Why + ": nothing changes its rules, or repairs them", causes: []string{keyNoController},
		Do: e.docs.See("see why there is none: kubectl get daemonset -A -l app.kubernetes.io/name=nodeproxy-agent", "troubleshooting.md#nodeproxyagentnotresponding"),
	}
	if t.Pod == "" {
		return f
	}
	f.Name, f.causes = "AgentPodNotReady", nil
	for _, what := range []string{"conflict", "accepted", "programmed"} { // with which it is not ready
		f.causes = append(f.causes, nodeKey(t.Node, what))
	}
	f.What = fmt.Sprintf("the agent's pod %s/%s is not ready: %s", t.Namespace, t.Pod, t.Why)
	f.Do = e.docs.See(fmt.Sprintf("kubectl describe pod -n %s %s; kubectl logs -n %s %s --tail=20", t.Namespace, t.Pod, t.Namespace, t.Pod), "troubleshooting.md#nodeproxyagentnotresponding")
	if !t.Since.IsZero() {
		f.Since = &t.Since
	}
	return f
}

// isNew reports whether a node is so new that its agent need not have reported yet.
func (e *examination) isNew(node *v1alpha1.NodeProxyRules) bool {
	return notes.IsNew(node, e.Time)
}

// onlyNew reports whether there are new nodes, and none else is not programmed.
func (e *examination) onlyNew() bool { return notes.OnlyNew(e.nodes, e.Time) }

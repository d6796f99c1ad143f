package findings

import (
	"fmt"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

// OwnPods checks the pods of the controller and of the agents. Only a controller detects that
// an agent is silent; without one, conditions are stale.
func (e *Examination) OwnPods() {
	down, elsewhere := e.NoController()
	switch {
	case down != "":
		e.Add(Finding{
			Severity: Problem, Reason: "NoController", Check: CheckController, Key: KeyNoController, Transient: true,
			Message: down + ": changes of Services do not reach the nodes, and the state of the nodes may be stale because agent liveness is not monitored",
			Remedy:  e.CheckController(),
		})
	case elsewhere && e.NodeProxy != nil:
		e.Notef("no pod of nodeproxy found: unless a controller runs outside the cluster, changes are not applied and agent liveness is not monitored")
	}
	for _, p := range e.AgentPodProblems(e.Nodes) {
		e.Add(e.agentPod(p))
	}
}

func (e *Examination) agentPod(p cluster.AgentPodProblem) Finding {
	if p.Pod == "" {
		return Finding{
			Severity: Problem, Reason: "AgentPodMissing", Check: CheckNodes, Nodes: []string{p.Node}, Key: NodeKey(p.Node, "pods"), Transient: true,
			Message: p.Why + ": the node's rules are neither updated nor repaired", Causes: []string{KeyNoController},
			Remedy: e.Docs.See("see why there is none: kubectl get daemonset -A -l app.kubernetes.io/name=nodeproxy-agent", "troubleshooting.md#nodeproxyagentnotresponding"),
		}
	}
	f := Finding{
		Severity: Problem, Reason: "AgentPodNotReady", Check: CheckNodes, Nodes: []string{p.Node}, Key: NodeKey(p.Node, "pods"), Transient: true,
		Message: fmt.Sprintf("the agent's pod %s/%s is not ready: %s", p.Namespace, p.Pod, p.Why),
		Remedy:  e.Docs.See(fmt.Sprintf("kubectl describe pod -n %s %s; kubectl logs -n %s %s --tail=20", p.Namespace, p.Pod, p.Namespace, p.Pod), "troubleshooting.md#nodeproxyagentnotresponding"),
	}
	for _, what := range []string{"conflict", "accepted", "programmed"} { // each makes the pod unready
		f.Causes = append(f.Causes, NodeKey(p.Node, what))
	}
	if !p.Since.IsZero() {
		f.Since = &p.Since
	}
	return f
}

package findings

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Controller checks the NodeProxy and what its status reports about the cluster.
func (e *Examination) Controller() {
	np := e.NodeProxy
	if np == nil {
		e.noNodeProxy()
		return
	}
	f := Finding{
		Severity: Problem, Reason: "NodeProxyNotObserved", Check: CheckController, Key: "nodeproxy not observed",
		Causes: []string{KeyBehind, KeyNoController}, Remedy: e.CheckController(), Transient: true,
	}
	switch {
	case np.DeletionTimestamp != nil:
		// Ready reports the progress.
	case np.Status.ObservedGeneration <= 0 && len(np.Status.Conditions) == 0:
		f.Message, f.Since = "no controller has reported on the NodeProxy yet", np.CreationTimestamp
		e.Add(f)
	case np.Status.ObservedGeneration < np.Generation:
		f.Message = fmt.Sprintf("the controller has not observed the latest change of the NodeProxy (generation %d, observed %d)", np.Generation, np.Status.ObservedGeneration)
		e.Add(f)
	}
	e.ready(np)
	e.deployed(np)
}

// noNodeProxy reports a missing NodeProxy. What that means depends on whether there was one.
func (e *Examination) noNodeProxy() {
	f := Finding{Severity: Problem, Reason: "NoNodeProxy", Check: CheckController, Key: KeyNoNodeProxy}
	if e.Off() {
		f.Message = fmt.Sprintf("nodeproxy is installed but not enabled: there is no NodeProxy %q, and no node has rules", v1alpha1.NodeProxyName)
		f.Remedy = fmt.Sprintf("create a NodeProxy: if kube-proxy serves the cluster, see %s, else %s", e.Docs.URL("migration.md#1-install-beside-kube-proxy"), e.Docs.URL("install.md#install"))
	} else {
		f.Message = fmt.Sprintf("the NodeProxy %q has been deleted: changes of Services are still applied, but settings and policies stay as they are, and new nodes get no rules", v1alpha1.NodeProxyName)
		f.Remedy = "if that was a mistake, apply your previous NodeProxy from your repository or a backup, because other settings would change every node; " +
			e.Docs.See("to remove nodeproxy, continue with the removal", "removal.md#with-retain")
	}
	e.Add(f)
}

// Off reports whether nodeproxy is not enabled: then nothing is rendered.
func (e *Examination) Off() bool {
	return e.NodeProxy == nil && len(e.NodeRules)+len(e.ServiceRules) == 0
}

// CheckController is the remedy for a controller that may not run.
func (e *Examination) CheckController() string {
	return e.Docs.See("check whether a controller runs: "+e.Own.Controllers(), "troubleshooting.md#nodeproxycontrollerwithoutleader")
}

func (e *Examination) ready(np *v1alpha1.NodeProxy) {
	c := Condition(np.Status.Conditions, v1alpha1.ConditionReady, metav1.ConditionFalse)
	if c == nil {
		return
	}
	f := Finding{
		Severity: Problem, Reason: c.Reason, Check: CheckController, Key: "nodeproxy " + c.Reason,
		Message: "NodeProxy is not ready: " + Message(c), Since: c.LastTransitionTime, Remedy: e.Docs.See("follow the message", "troubleshooting.md#what-ready-shows"),
	}
	switch c.Reason {
	case v1alpha1.ReasonNodesNotProgrammed, v1alpha1.ReasonAgentPodsNotReady:
		if e.OnlyNew(e.Nodes) {
			e.Notef("NodeProxy waits for new nodes: %s", Message(c))
			return
		}
		// The findings of the nodes explain why.
		f.Reason, f.Message = "NodesNotProgrammed", "NodeProxy reports nodes that are not programmed: "+Message(c)
		f.Transient, f.Causes = true, NodeKeys(e.Nodes...)
	case v1alpha1.ReasonProgressing:
		e.Notef("a change of NodeProxy's settings is being rolled out: %s", c.Message)
		return
	case v1alpha1.ReasonPaused:
		f.Severity, f.Remedy = Warning, e.Docs.See("set spec.rollout.paused of the NodeProxy to false", "policies.md#when-it-halts")
	case v1alpha1.ReasonRolloutHalted:
		f.Remedy = e.Docs.See("fix the named nodes, or change the settings again", "policies.md#when-it-halts")
	case v1alpha1.ReasonInvalidSettings:
		f.Remedy = "correct the field: kubectl edit nodeproxy cluster"
	case v1alpha1.ReasonRemoving:
		f.Severity, f.Remedy = Warning, e.Docs.See("wait until the nodes have removed their rules, or set spec.removalPolicy to Retain to keep the remaining ones", "removal.md#with-cleanup")
	case v1alpha1.ReasonAPIServerUnreachable:
		f.Remedy = e.Docs.See("correct spec.apiServer.endpoints of the NodeProxy, or remove the field", "troubleshooting.md#named-api-servers-do-not-answer")
	case v1alpha1.ReasonNoAgentImage, v1alpha1.ReasonDaemonSetDenied, v1alpha1.ReasonAgentPodsFailing:
		e.aboutAgentPods(&f)
	}
	e.Add(f)
}

// deployed reports why the agents are not deployed, unless that is why NodeProxy is not
// ready.
func (e *Examination) deployed(np *v1alpha1.NodeProxy) {
	c := Condition(np.Status.Conditions, v1alpha1.ConditionAgentsDeployed, metav1.ConditionFalse)
	ready := meta.FindStatusCondition(np.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case c == nil || c.Reason == v1alpha1.ReasonAgentsUpdating || ready != nil && ready.Reason == c.Reason:
		return
	case c.Reason == v1alpha1.ReasonAgentPodsNotReady && e.OnlyNew(e.Nodes):
		return // a note mentions them
	}
	f := Finding{
		Severity: Problem, Reason: c.Reason, Check: CheckController, Key: "nodeproxy " + c.Reason,
		Message: "the agents are not deployed: " + Message(c), Since: c.LastTransitionTime, Transient: true,
	}
	e.aboutAgentPods(&f)
	e.Add(f)
}

// aboutAgentPods completes a finding about the deployment of the agents.
func (e *Examination) aboutAgentPods(f *Finding) {
	f.Remedy = e.Docs.See("follow the message; the agents' pods: "+e.Own.Agents(), "troubleshooting.md#agents-are-not-deployed")
	if f.Reason == v1alpha1.ReasonAgentPodsFailing || f.Reason == v1alpha1.ReasonAgentPodsNotReady {
		for _, node := range e.Nodes {
			f.Causes = append(f.Causes, NodeKey(node.Name, "pods"))
		}
	}
}

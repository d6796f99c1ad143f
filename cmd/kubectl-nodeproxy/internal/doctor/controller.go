package doctor

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/notes"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// Keys of findings that explain others.
const (
	keyNoNodeProxy = "no nodeproxy"
	keyBehind      = "controller behind"
	keyInventory   = "inventory"
	keyRemoving    = "nodeproxy " + v1alpha1.ReasonRemoving
	keyLagging     = "lagging"
)

// controller looks at the NodeProxy and what its status says of the cluster.
func (e *examination) controller() {
	np := e.NodeProxy
	if np == nil {
		e.noNodeProxy()
		return
	}
	switch {
	case np.DeletionTimestamp != nil:
		// Ready says how far it is.
	case np.Status.ObservedGeneration <= 0:
		e.add(Finding{
			Severity: Problem, Name: "NodeProxyNotSeen", Check: CheckController, key: "nodeproxy not seen", causes: []string{keyBehind},
			What: "no controller has reported on the NodeProxy yet", Since: &np.CreationTimestamp,
			Do: e.doController(), passing: true,
		})
	case np.Status.ObservedGeneration < np.Generation:
		e.add(Finding{
			Severity: Problem, Name: "NodeProxyNotSeen", Check: CheckController, key: "nodeproxy not seen", causes: []string{keyBehind},
			What: fmt.Sprintf("the controller has not seen the latest change of the NodeProxy (generation %d, seen %d)", np.Generation, np.Status.ObservedGeneration),
			Do:   e.doController(), passing: true,
		})
	}
	e.ready(np)
	e.inventory(np)
	e.refusedServices(np)
}

// noNodeProxy tells what it means that there is none, which depends on whether there
// was one.
func (e *examination) noNodeProxy() {
	f := Finding{Severity: Problem, Name: "NoNodeProxy", Check: CheckController, key: keyNoNodeProxy}
	if e.off() {
		f.What = fmt.Sprintf("nodeproxy is not switched on: there is no NodeProxy %q, and no node has rules", v1alpha1.NodeProxyName)
		f.Do = fmt.Sprintf("create a NodeProxy: where kube-proxy serves the cluster, step by step as in %s, else as in %s", e.docs.URL("migration.md#1-install-beside-kube-proxy"), e.docs.URL("install.md#install"))
	} else {
		f.What = fmt.Sprintf("the NodeProxy %q has been deleted: Services are still followed, but settings and policies stay as they are, and new nodes get no rules", v1alpha1.NodeProxyName)
		f.Do = "if that was a mistake, apply the one that you had, from your repository or a backup: other settings would change every node; " +
			e.docs.See("if nodeproxy is to be removed, go on with the removal", "removal.md#with-retain")
	}
	e.add(f)
}

// off reports whether nodeproxy is not switched on: then nothing is rendered.
func (e *examination) off() bool {
	return e.NodeProxy == nil && len(e.NodeRules)+len(e.ServiceRules) == 0
}

func (e *examination) doController() string {
	return e.docs.See("see whether a controller runs: "+e.own.Controllers(), "troubleshooting.md#nodeproxycontrollerwithoutleader")
}

// ready tells why NodeProxy is not ready, where that is no sum of what is said of the
// nodes.
func (e *examination) ready(np *v1alpha1.NodeProxy) {
	c := condition(np.Status.Conditions, v1alpha1.ConditionReady, metav1.ConditionFalse)
	if c == nil {
		return
	}
	f := Finding{
		Severity: Problem, Name: c.Reason, Check: CheckController, key: "nodeproxy " + c.Reason,
		What: "NodeProxy is not ready: " + cmpMessage(c), Since: since(c), Do: e.docs.See("do what the message says", "troubleshooting.md#what-ready-says"),
	}
	switch c.Reason {
	case v1alpha1.ReasonNodesNotProgrammed, v1alpha1.ReasonAgentPodsNotReady:
		if e.onlyNew() {
			e.remark("NodeProxy waits for nodes that are new: %s", cmpMessage(c))
			return
		}
		// The nodes say why. Only one that has not said anything yet does not.
		f.Name, f.What = "NodesNotProgrammed", "NodeProxy counts nodes that are not as they should be: "+cmpMessage(c)
		f.passing = true
		for _, node := range e.nodes {
			f.causes = append(f.causes, nodeKeys(node.Name)...)
		}
	case v1alpha1.ReasonProgressing:
		e.remark("a change of NodeProxy's settings is on its way to the nodes: %s", c.Message)
		return
	case v1alpha1.ReasonPaused:
		f.Severity, f.Do = Warning, e.docs.See("set spec.rollout.paused of the NodeProxy to false", "policies.md#when-it-stops")
	case v1alpha1.ReasonRolloutStopped:
		f.Do = e.docs.See("mend the nodes that are named, or change the settings again", "policies.md#when-it-stops")
	case v1alpha1.ReasonInvalidSettings:
		f.Do = "correct the field: kubectl edit nodeproxy cluster"
	case v1alpha1.ReasonRemoving:
		f.Severity, f.Do = Warning, e.docs.See("wait until the nodes have removed their rules, or set spec.removalPolicy to Retain to keep those that are left", "removal.md#with-cleanup")
	case v1alpha1.ReasonAPIServerUnreachable:
		f.Do = e.docs.See("correct spec.apiServer.endpoints of the NodeProxy, or remove the field", "troubleshooting.md#named-api-servers-do-not-answer")
	case v1alpha1.ReasonNoAgentImage, v1alpha1.ReasonDaemonSetRefused, v1alpha1.ReasonAgentPodsFailing:
		f.Do = e.docs.See("do what the message says; the agents' pods: "+e.own.Agents(), "troubleshooting.md#agents-are-not-deployed")
		if c.Reason == v1alpha1.ReasonAgentPodsFailing {
			for _, node := range e.nodes {
				f.causes = append(f.causes, nodeKey(node.Name, "pods"))
			}
		}
	}
	e.add(f)
}

func cmpMessage(c *metav1.Condition) string {
	if c.Message == "" {
		return c.Reason
	}
	return c.Message
}

// inventory compares what the controller says must exist with what does.
func (e *examination) inventory(np *v1alpha1.NodeProxy) {
	said := np.Status.Inventory
	if said == nil || e.lacking(cluster.ServiceProxyRules) != "" || e.only != nil {
		return
	}
	if what := notes.InventoryDiffers(np, e.ServiceRules); what != "" {
		e.add(Finding{
			Severity: Problem, Name: "InventoryDiffers", Check: CheckController, key: keyInventory, causes: []string{keyRemoving, keyBehind},
			What: what,
			Do:   e.doController(), passing: true, token: np.ResourceVersion,
		})
	}
	if said.Services == 0 {
		e.remark("no Service is proxied")
	}
}

// refusedServices names the Services that the controller cannot render or store.
func (e *examination) refusedServices(np *v1alpha1.NodeProxy) {
	for _, r := range np.Status.Refused {
		if e.only != nil && (e.only.Namespace != r.Namespace || e.only.Name != r.Name) {
			continue
		}
		if e.lacking(cluster.Services) == "" && e.services[types.NamespacedName{Namespace: r.Namespace, Name: r.Name}] == nil {
			continue // it is gone, and the status is about to say so
		}
		e.add(Finding{
			Severity: Problem, Name: "ServiceRefused", passing: true, Check: CheckRendering, Service: r.Namespace + "/" + r.Name,
			key:  "refused " + r.Namespace + "/" + r.Name,
			What: "the Service cannot be rendered or stored, so that no node serves it: " + r.Message,
			Do:   e.docs.See("correct the Service as the message says", "troubleshooting.md#nodeproxyservicesnotrendered"),
		})
	}
	if more := int(np.Status.RefusedServices) - len(np.Status.Refused); more > 0 && e.only == nil {
		e.remark("the controller refuses %s that NodeProxy does not name: kubectl get events -A --field-selector reason=ServiceRefused", output.Plural(more, "more Service"))
	}
}

// behind is what it means when the controller has not done what follows from objects
// that are a while old.
func (e *examination) behind() {
	known := map[string]bool{keyBehind: true}
	for i := range e.found {
		known[e.found[i].key] = true
	}
	if !slices.ContainsFunc(e.found, func(f Finding) bool {
		best := slices.IndexFunc(f.causes, func(cause string) bool { return cause != "" && known[cause] })
		return best >= 0 && f.causes[best] == keyBehind
	}) {
		return
	}
	e.add(Finding{
		Severity: Problem, Name: "ControllerBehind", Check: CheckController, key: keyBehind, causes: []string{keyNoController},
		What: "the controller is down or behind: what follows from the objects is not done, seen twice",
		Do:   e.doController(),
	})
}

// followController lets follow from a controller that is down or behind what does not
// show by itself that it is.
func (e *examination) followController() {
	for i := range e.found {
		switch f := &e.found[i]; {
		case f.key == keyLagging: // its count is then of before
			f.causes = append([]string{keyNoController, keyBehind}, f.causes...)
		case e.only != nil && slices.Contains(f.causes, keyInventory): // which is looked at for all Services alone
			f.causes = append(f.causes, keyRemoving, keyBehind, keyNoController)
		}
	}
}

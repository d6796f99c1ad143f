package doctor

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// Keys of findings that explain others.
const (
	keyNoNodeProxy = "no nodeproxy"
	keyBehind      = "controller behind"
	keyInventory   = "inventory"
	keyRemoving    = "nodeproxy " + v1alpha1.ReasonRemoving
)

// controller looks at the NodeProxy and what its status says of the cluster.
func (e *examination) controller() {
	np := e.NodeProxy
	if np == nil {
		e.add(Finding{
			Severity: Problem, Name: "NoNodeProxy", Check: CheckController, key: keyNoNodeProxy,
			What: fmt.Sprintf("there is no NodeProxy %q: nodes keep the rules and settings that they have, and new nodes get none", v1alpha1.NodeProxyName),
			Do:   "create it, as in docs/install.md#install",
		})
		return
	}
	switch {
	case np.DeletionTimestamp != nil:
		// Ready says how far it is.
	case np.Status.ObservedGeneration == 0:
		e.add(Finding{
			Severity: Problem, Name: "NodeProxyNotSeen", Check: CheckController, key: "nodeproxy not seen", causes: []string{keyBehind},
			What: "no controller has reported on the NodeProxy yet", Since: &np.CreationTimestamp,
			Do: doController, passing: true,
		})
	case np.Status.ObservedGeneration < np.Generation:
		e.add(Finding{
			Severity: Problem, Name: "NodeProxyNotSeen", Check: CheckController, key: "nodeproxy not seen", causes: []string{keyBehind},
			What: fmt.Sprintf("the controller has not seen the latest change of the NodeProxy (generation %d, seen %d)", np.Generation, np.Status.ObservedGeneration),
			Do:   doController, passing: true,
		})
	}
	e.ready(np)
	e.inventory(np)
	e.refusedServices(np)
}

const doController = "see whether a controller runs: kubectl -n nodeproxy-system get pods,leases; docs/troubleshooting.md#nodeproxycontrollerwithoutleader"

// ready tells why NodeProxy is not ready, where that is no sum of what is said of the
// nodes.
func (e *examination) ready(np *v1alpha1.NodeProxy) {
	c := condition(np.Status.Conditions, v1alpha1.ConditionReady, metav1.ConditionFalse)
	if c == nil {
		return
	}
	f := Finding{
		Severity: Problem, Name: c.Reason, Check: CheckController, key: "nodeproxy " + c.Reason,
		What: "NodeProxy is not ready: " + cmpMessage(c), Since: since(c), Do: "docs/troubleshooting.md#what-ready-says",
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
		f.Severity, f.Do = Warning, "set spec.rollout.paused of the NodeProxy to false; docs/policies.md#when-it-stops"
	case v1alpha1.ReasonRolloutStopped:
		f.Do = "docs/policies.md#when-it-stops"
	case v1alpha1.ReasonInvalidSettings:
		f.Do = "correct the field: kubectl edit nodeproxy cluster"
	case v1alpha1.ReasonRemoving:
		f.Severity, f.Do = Warning, "docs/removal.md#with-cleanup"
	case v1alpha1.ReasonAPIServerUnreachable:
		f.Do = "docs/troubleshooting.md#named-api-servers-do-not-answer"
	case v1alpha1.ReasonNoAgentImage, v1alpha1.ReasonDaemonSetRefused, v1alpha1.ReasonAgentPodsFailing:
		f.Do = "docs/troubleshooting.md#agents-are-not-deployed"
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
	var names []string
	for i := range e.ServiceRules {
		if !e.ServiceRules[i].Spec.Released {
			names = append(names, e.ServiceRules[i].Name)
		}
	}
	if there := render.Inventory(names); there != *said {
		e.add(Finding{
			Severity: Problem, Name: "InventoryDiffers", Check: CheckController, key: keyInventory, causes: []string{keyRemoving, keyBehind},
			What: fmt.Sprintf("NodeProxy says that %d ServiceProxyRules must exist, and there are %d, or others: nodes hold on to what is missing", said.Services, there.Services),
			Do:   doController, passing: true, token: np.ResourceVersion,
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
		e.add(Finding{
			Severity: Problem, Name: "ServiceRefused", Check: CheckRendering, Service: r.Namespace + "/" + r.Name,
			key:  "refused " + r.Namespace + "/" + r.Name,
			What: "the Service cannot be rendered or stored, so that no node serves it: " + r.Message,
			Do:   "correct the Service as the message says; docs/troubleshooting.md#nodeproxyservicesnotrendered",
		})
	}
	if more := int(np.Status.RefusedServices) - len(np.Status.Refused); more > 0 && e.only == nil {
		e.remark("the controller refuses %d more Services than NodeProxy names: kubectl get events -A --field-selector reason=ServiceRefused", more)
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
		What: "the controller is down or behind: what follows from the objects is not done, at two looks",
		Do:   doController,
	})
}

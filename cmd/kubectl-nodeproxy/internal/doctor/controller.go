package doctor

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/notes"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// inventory compares the ServiceProxyRules with those that must exist.
func (e *examination) inventory() {
	np := e.NodeProxy
	if np.Status.Inventory == nil || e.Unreadable(cluster.ServiceProxyRules) != "" || e.Only != nil {
		return
	}
	if what := notes.InventoryDiffers(np, e.ServiceRules); what != "" {
		e.Add(findings.Finding{
			Severity: findings.Problem, Reason: "InventoryDiffers", Check: findings.CheckController, Key: findings.KeyInventory,
			Causes:  []string{findings.KeyRemoving, findings.KeyBehind},
			Message: what, Remedy: e.CheckController(), Transient: true, Token: np.ResourceVersion,
		})
	}
	if np.Status.Inventory.Services == 0 {
		e.Notef("no Services are proxied")
	}
}

// rejectedServices names the Services that the controller cannot render or store.
func (e *examination) rejectedServices() {
	status := &e.NodeProxy.Status
	for _, r := range status.Unrendered {
		name := types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
		if !e.concerns(name) || e.Unreadable(cluster.Services) == "" && e.services[name] == nil {
			continue // deleted Services are about to vanish from the status
		}
		e.Add(findings.Finding{
			Severity: findings.Problem, Reason: "ServiceRejected", Transient: true, Check: findings.CheckRendering, Service: name.String(),
			Message: "the Service cannot be rendered or stored, so no node serves it: " + r.Message,
			Remedy:  e.Docs.See("correct the Service as the message says", "troubleshooting.md#nodeproxyservicesnotrendered"),
		})
	}
	if more := int(status.UnrenderedServices) - len(status.Unrendered); more > 0 && e.Only == nil {
		e.Notef("the controller rejects %s that NodeProxy does not name: kubectl get events -A --field-selector reason=ServiceNotRendered", output.Plural(more, "more Service"))
	}
}

// behind adds the cause of findings that mean that the controller has not reacted to
// objects in time.
func (e *examination) behind() {
	known := map[string]bool{findings.KeyBehind: true}
	for i := range e.Found {
		known[e.Found[i].Key] = true
	}
	if !slices.ContainsFunc(e.Found, func(f findings.Finding) bool {
		best := slices.IndexFunc(f.Causes, func(cause string) bool { return cause != "" && known[cause] })
		return best >= 0 && f.Causes[best] == findings.KeyBehind
	}) {
		return
	}
	e.Add(findings.Finding{
		Severity: findings.Problem, Reason: "ControllerBehind", Check: findings.CheckController, Key: findings.KeyBehind, Causes: []string{findings.KeyNoController},
		Message: "the controller is down or behind: two examinations found that it has not reacted to changes",
		Remedy:  e.CheckController(),
	})
}

// followController makes a controller that is down or behind the cause of findings that do
// not show that by themselves.
func (e *examination) followController() {
	for i := range e.Found {
		switch f := &e.Found[i]; {
		case f.Key == findings.KeyLagging: // its count is stale then
			f.Causes = slices.Insert(f.Causes, 1, findings.KeyBehind)
		case e.Only != nil && slices.Contains(f.Causes, findings.KeyInventory): // the inventory is only checked for all Services
			f.Causes = append(f.Causes, findings.KeyRemoving, findings.KeyBehind, findings.KeyNoController)
		}
	}
}

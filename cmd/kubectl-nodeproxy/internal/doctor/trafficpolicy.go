package doctor

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
)

// trafficPolicies reports nodes without endpoints under traffic policy Local.
func (e *examination) trafficPolicies() {
	for name, rules := range e.used(findings.CheckTrafficPolicy) {
		if !e.concerns(name) {
			continue
		}
		if rules.Spec.InternalTrafficPolicy != v1alpha1.TrafficPolicyLocal && rules.Spec.ExternalTrafficPolicy != v1alpha1.TrafficPolicyLocal {
			continue
		}
		if nodes, ports := e.without(name, rules); len(nodes) > 0 {
			e.internalLocal(name, rules, nodes, ports)
			e.externalLocal(name, rules, nodes)
		}
	}
}

// without returns the nodes on which a port with endpoints elsewhere has none, and these
// ports.
func (e *examination) without(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules) (nodes, ports []string) {
	for _, port := range rules.Spec.Ports {
		// The agent uses the ready endpoints on its node, else the terminating ones, whatever
		// other nodes have.
		all := known(port)
		if len(all) == 0 {
			continue // on no node: see the check of endpoints
		}
		bare := false
		for _, node := range e.Nodes {
			if e.IsNew(node) || slices.ContainsFunc(e.membersOn(node, name, port), func(m string) bool { return all[m] }) {
				continue // a new node has no pods yet
			}
			bare = true
			nodes = append(nodes, node.Name)
		}
		if bare {
			ports = append(ports, portName(port.Name, port.Port, port.Protocol))
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), ports
}

// internalLocal: packets of pods and of the node itself to the cluster IP are dropped there.
func (e *examination) internalLocal(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules, nodes, ports []string) {
	if rules.Spec.InternalTrafficPolicy != v1alpha1.TrafficPolicyLocal {
		return
	}
	by := fmt.Sprintf("set internalTrafficPolicy to Cluster: kubectl edit service -n %s %s", name.Namespace, name.Name)
	if len(rules.Spec.Policies) > 0 {
		by += fmt.Sprintf(" (these ServiceProxyPolicies also apply: %s)", findings.Some(rules.Spec.Policies))
	}
	e.Add(findings.Finding{
		Severity: findings.Problem, Reason: "LocalWithoutEndpoint", Check: findings.CheckTrafficPolicy, Service: name.String(), Nodes: nodes,
		Causes: []string{"rendering " + name.String(), "endpoints " + name.String()},
		Message: fmt.Sprintf("internalTrafficPolicy is Local, and no endpoint for port %s is on %s: packets of pods there to the cluster IP are dropped",
			findings.Some(ports), thereOn(len(nodes))),
		Remedy: "run a pod of it on each node (a DaemonSet), or " + by,
	})
}

func thereOn(nodes int) string {
	if nodes == 1 {
		return "this node"
	}
	return "these nodes"
}

// externalLocal: packets from outside are dropped there, unless a load balancer avoids the
// node by its health check port.
func (e *examination) externalLocal(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules, nodes []string) {
	if rules.Spec.ExternalTrafficPolicy != v1alpha1.TrafficPolicyLocal {
		return
	}
	svc := e.services[name]
	switch {
	case rules.Spec.HealthCheckNodePort != 0:
		e.Notef("%s has externalTrafficPolicy Local, and no endpoint on %s: its load balancer avoids the node by health check port %d", name, findings.Some(nodes), rules.Spec.HealthCheckNodePort)
	case svc != nil && svc.Spec.Type == corev1.ServiceTypeLoadBalancer:
		e.Add(findings.Finding{
			Severity: findings.Warning, Reason: "LocalWithoutHealthCheck", Check: findings.CheckTrafficPolicy, Service: name.String(), Nodes: nodes,
			Message: "externalTrafficPolicy is Local, no endpoint is on " + thereOn(len(nodes)) + ", and the Service has no health check port by which the load balancer could avoid it: packets are dropped there",
			Remedy:  e.Docs.See("set externalTrafficPolicy in the Service itself, which then gets a healthCheckNodePort", "troubleshooting.md#a-load-balancer-takes-a-node-out"),
		})
	default:
		e.withoutHealthCheck(name, rules, nodes)
	}
}

// withoutHealthCheck: clients reach nodes without endpoints by node ports and external IPs,
// because no load balancer avoids these nodes.
func (e *examination) withoutHealthCheck(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules, nodes []string) {
	hasNodePort := slices.ContainsFunc(rules.Spec.Ports, func(p v1alpha1.ServicePort) bool { return p.NodePort != 0 })
	var by string
	switch hasExternalIP := len(rules.Spec.ExternalIPs)+len(rules.Spec.LoadBalancerIPs) > 0; {
	case hasNodePort && hasExternalIP:
		by = "the node ports and the external IPs"
	case hasNodePort:
		by = "the node ports"
	case hasExternalIP:
		by = "the external IPs"
	default:
		return // clients outside cannot reach it
	}
	set := fmt.Sprintf("set externalTrafficPolicy to Cluster (which masquerades clients' addresses): kubectl edit service -n %s %s", name.Namespace, name.Name)
	if len(rules.Spec.Policies) > 0 {
		set += fmt.Sprintf(" (these ServiceProxyPolicies also apply: %s)", findings.Some(rules.Spec.Policies))
	}
	e.Add(findings.Finding{
		Severity: findings.Warning, Reason: "ExternalLocalWithoutEndpoint", Check: findings.CheckTrafficPolicy, Service: name.String(), Nodes: nodes,
		Causes: []string{"rendering " + name.String(), "endpoints " + name.String()},
		Message: fmt.Sprintf("externalTrafficPolicy is Local, and no endpoint is on %s: packets of clients outside to %s are dropped there, because no load balancer with a health check avoids it",
			thereOn(len(nodes)), by),
		Remedy: "send clients only to nodes with endpoints, run a pod of it on each node (a DaemonSet), or " + set,
	})
}

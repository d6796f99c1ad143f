package doctor

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// trafficPolicies looks which nodes policy Local leaves without endpoints.
func (e *examination) trafficPolicies() {
	for name, rules := range e.used(CheckTrafficPolicy) {
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

// without returns the nodes on which some port of a Service that has endpoints has
// none, and these ports.
func (e *examination) without(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules) (nodes, ports []string) {
	for _, port := range rules.Spec.Ports {
		// Of those on a node the agent takes the ready ones, else those that terminate,
		// whatever there is on other nodes.
		all := known(port)
		if len(all) == 0 {
			continue // everywhere: that is for another check
		}
		bare := false
		for _, node := range e.nodes {
			if e.isNew(node) || slices.ContainsFunc(e.membersOn(node, name, port), func(m string) bool { return all[m] }) {
				continue // pods have yet to come to nodes that are new
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

// internalLocal: what pods and the node itself send to the cluster IP is dropped there.
func (e *examination) internalLocal(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules, nodes, ports []string) {
	if rules.Spec.InternalTrafficPolicy != v1alpha1.TrafficPolicyLocal {
		return
	}
	by := fmt.Sprintf("set internalTrafficPolicy to Cluster: kubectl edit service -n %s %s", name.Namespace, name.Name)
	if len(rules.Spec.Policies) > 0 {
		by += fmt.Sprintf(" (ServiceProxyPolicies shape the Service, too: %s)", some(rules.Spec.Policies))
	}
	e.add(Finding{
		Severity: Problem, Name: "LocalWithoutEndpoint", Check: CheckTrafficPolicy, Service: name.String(), Nodes: nodes,
		causes: []string{"rendering " + name.String(), "endpoints " + name.String()},
		What: fmt.Sprintf("internalTrafficPolicy is Local, and no endpoint for port %s is on %s: what pods there send to the cluster IP is dropped",
			some(ports), thereOn(len(nodes))),
		Do: "run a pod of it on each node (a DaemonSet), or " + by,
	})
}

func thereOn(nodes int) string {
	if nodes == 1 {
		return "this node"
	}
	return "these nodes"
}

// externalLocal: what arrives there from outside is dropped, which a load balancer that
// asks the health check port avoids.
func (e *examination) externalLocal(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules, nodes []string) {
	if rules.Spec.ExternalTrafficPolicy != v1alpha1.TrafficPolicyLocal {
		return
	}
	svc := e.services[name]
	switch {
	case rules.Spec.HealthCheckNodePort != 0:
		e.remark("%s has externalTrafficPolicy Local, and no endpoint on %s: its load balancer keeps away from there by asking the health check port %d", name, some(nodes), rules.Spec.HealthCheckNodePort)
	case svc != nil && svc.Spec.Type == corev1.ServiceTypeLoadBalancer:
		e.add(Finding{
			Severity: Warning, Name: "LocalWithoutHealthCheck", Check: CheckTrafficPolicy, Service: name.String(), Nodes: nodes,
			What: "externalTrafficPolicy is Local, no endpoint is on " + thereOn(len(nodes)) + ", and there is no health check port by which the load balancer could tell: what it sends there is dropped",
			Do:   e.docs.See("set externalTrafficPolicy in the Service itself, which gives it a healthCheckNodePort", "troubleshooting.md#a-load-balancer-takes-a-node-out"),
		})
	default:
		e.nobodyWarns(name, rules, nodes)
	}
}

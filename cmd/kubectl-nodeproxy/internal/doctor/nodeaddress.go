package doctor

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// portsOfNodes are the TCP ports of the node itself: SSH, API server, kubelet, health and
// metrics of kube-proxy and of nodeproxy.
func portsOfNodes() []int32 { return []int32{22, 6443, 10249, 10250, 10256, 19256, 19257, 19258} }

// nodeAddresses reports addresses of Services that are addresses of nodes. Load balancers on
// the nodes commonly assign these. That is a problem if the node itself uses the port; a
// node port stays with its owner.
func (e *examination) nodeAddresses() {
	nodes := map[string]string{}
	for _, node := range e.Nodes {
		for _, a := range node.Spec.Node.Addresses {
			nodes[a] = node.Name
		}
	}
	for name, rules := range e.used(findings.CheckExposure) {
		if !e.concerns(name) {
			continue
		}
		clash := e.clashes(name, &rules.Spec)
		of := func(what string, severity findings.Severity, addresses []string) {
			for _, a := range addresses {
				if on := nodes[a]; on != "" {
					e.Add(nodeAddressTaken(name, on, a, what, severity, clash))
				}
			}
		}
		of("a cluster IP", findings.Problem, rules.Spec.ClusterIPs)
		of("an external IP", findings.Warning, rules.Spec.ExternalIPs)
		balanced := slices.DeleteFunc(slices.Clone(rules.Spec.LoadBalancerIPs), func(a string) bool {
			return nodes[a] == "" || slices.Contains(rules.Spec.ExternalIPs, a)
		})
		switch {
		case len(balanced) == 0:
		case len(clash.node)+len(clash.nodePorts) > 0:
			of("a load-balancer IP", findings.Problem, balanced)
		default:
			e.Notef("%s of %s: %s, as with load balancers on the nodes: the Service gets the connections to its ports there",
				output.Plural(len(balanced), "load-balancer IP"), name, isOfNode(balanced))
		}
	}
}

func isOfNode(addresses []string) string {
	if len(addresses) == 1 {
		return addresses[0] + " is an address of a node"
	}
	return findings.Some(addresses) + " are addresses of nodes"
}

func nodeAddressTaken(name types.NamespacedName, on, address, what string, severity findings.Severity, clash clash) findings.Finding {
	f := findings.Finding{
		Severity: severity, Reason: "NodeAddressTaken", Check: findings.CheckExposure, Service: name.String(), Nodes: []string{on},
		Message: fmt.Sprintf("%s, %s of the Service, is the node's own address: the Service gets connections to its ports there", address, what),
		Remedy:  fmt.Sprintf("remove it from the Service: kubectl edit service -n %s %s", name.Namespace, name.Name),
	}
	if len(clash.node) > 0 {
		f.Severity = findings.Problem
		f.Message += ", also those that the node needs: " + strings.Join(clash.node, ", ")
	}
	if len(clash.nodePorts) > 0 {
		f.Severity = findings.Problem
		f.Message += ", except those that stay with their owner: " + strings.Join(clash.nodePorts, ", ")
	}
	return f
}

// clash describes conflicting ports of a Service: ports of the node itself, and node ports
// of other Services.
type clash struct{ node, nodePorts []string }

// clashes returns the ports of a Service that the node itself, or another Service, uses on
// the node's addresses.
func (e *examination) clashes(name types.NamespacedName, spec *v1alpha1.ServiceProxyRulesSpec) clash {
	var out clash
	for _, p := range spec.Ports {
		owner, taken := e.nodePortOwner(p.Port, p.Protocol)
		switch {
		case taken && owner != name:
			out.nodePorts = append(out.nodePorts, fmt.Sprintf("%s is the node port of %s", portOf(p), owner))
		case p.Protocol == v1alpha1.ProtocolTCP && slices.Contains(portsOfNodes(), p.Port):
			out.node = append(out.node, portOf(p)+" is a port of the node itself")
		}
	}
	return out
}

// nodePortOwner returns the Service that owns a node port or health check node port.
func (e *examination) nodePortOwner(port int32, protocol v1alpha1.Protocol) (types.NamespacedName, bool) {
	for _, everywhere := range []string{"0.0.0.0", "::"} {
		if owner, ok := e.holders.Of(claimOf(everywhere, v1alpha1.ServicePort{Port: port, Protocol: protocol})); ok {
			return types.NamespacedName(owner), true
		}
	}
	return types.NamespacedName{}, false
}

package doctor

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// portsOfNodes are those at which a node itself is spoken to, by TCP: SSH, the API
// server, the kubelet, the proxy's health and metrics, and nodeproxy's own.
func portsOfNodes() []int32 { return []int32{22, 6443, 10249, 10250, 10256, 19256, 19257, 19258} }

// nodeAddresses finds addresses of Services that are those of nodes. That is common, and
// often meant: load balancers that run on the nodes give out the nodes' addresses. It
// breaks something where the node itself has the port; what is a node port stays that.
func (e *examination) nodeAddresses() {
	nodes := map[string]string{}
	for _, node := range e.nodes {
		for _, a := range node.Spec.Node.Addresses {
			nodes[a] = node.Name
		}
	}
	for name, rules := range e.used(CheckExposure) {
		if !e.concerns(name) {
			continue
		}
		clash := e.clashes(name, &rules.Spec)
		of := func(what string, severity Severity, addresses []string) {
			for _, a := range addresses {
				if on := nodes[a]; on != "" {
					e.add(nodeAddressTaken(name, on, a, what, severity, clash))
				}
			}
		}
		of("a cluster IP", Problem, rules.Spec.ClusterIPs)
		of("an external IP", Warning, rules.Spec.ExternalIPs)
		balanced := slices.DeleteFunc(slices.Clone(rules.Spec.LoadBalancerIPs), func(a string) bool {
			return nodes[a] == "" || slices.Contains(rules.Spec.ExternalIPs, a)
		})
		switch {
		case len(balanced) == 0:
		case len(clash.node)+len(clash.nodePorts) > 0:
			of("a load-balancer IP", Problem, balanced)
		default:
			e.remark("%s of %s: %s, as of load balancers that run on the nodes: what is for its ports there goes to the Service",
				output.Plural(len(balanced), "load-balancer IP"), name, isOfNode(balanced))
		}
	}
}

func isOfNode(addresses []string) string {
	if len(addresses) == 1 {
		return addresses[0] + " is an address of a node"
	}
	return some(addresses) + " are addresses of nodes"
}

func nodeAddressTaken(name types.NamespacedName, on, address, what string, severity Severity, clash clash) Finding {
	f := Finding{
		Severity: severity, Name: "NodeAddressTaken", Check: CheckExposure, Service: name.String(), Nodes: []string{on},
		What: fmt.Sprintf("%s, %s of the Service, is the node's own address: what is for the node's port is sent to the Service", address, what),
		Do:   fmt.Sprintf("take it out of the Service: kubectl edit service -n %s %s", name.Namespace, name.Name),
	}
	if len(clash.node) > 0 {
		f.Severity = Problem
		f.What += ", and so is what the node needs: " + strings.Join(clash.node, ", ")
	}
	if len(clash.nodePorts) > 0 {
		f.Severity = Problem
		f.What += ", but for what stays with its owner: " + strings.Join(clash.nodePorts, ", ")
	}
	return f
}

// clash is what of a Service's ports is a node's, each in words: ports of the node itself, and
// node ports of others.
type clash struct{ node, nodePorts []string }

// clashes are the ports of a Service that a node itself needs, or another Service on
// the nodes.
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

// nodePortOwner tells whose node port, or health-check node port, a port is.
func (e *examination) nodePortOwner(port int32, protocol v1alpha1.Protocol) (types.NamespacedName, bool) {
	for _, everywhere := range []string{"0.0.0.0", "::"} {
		if owner, ok := e.holders.Of(claimOf(everywhere, v1alpha1.ServicePort{Port: port, Protocol: protocol})); ok {
			return types.NamespacedName(owner), true
		}
	}
	return types.NamespacedName{}, false
}

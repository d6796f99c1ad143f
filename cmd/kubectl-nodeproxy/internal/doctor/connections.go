package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/tracer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
)

// maxTracedServices is how many Services are traced if all are examined.
const maxTracedServices = 300

// maxTracedEndpoints is how many endpoints of the one examined Service are traced.
const maxTracedEndpoints = 20

// Trace traces a packet through the desired rules of a node.
type Trace func(*combine.Set, tracer.Packet) (*tracer.Result, error)

// hairpin checks whether a pod can use its own Service: if the connection returns to the pod,
// the node must have masqueraded it, or the pod would reply to itself.
func (e *examination) hairpin() {
	traced, left := 0, 0
	for name, rules := range e.used(findings.CheckHairpin) {
		if traced == maxTracedServices {
			left++
			continue
		}
		if e.hairpinOf(name, rules) {
			traced++
		}
	}
	if left > 0 {
		e.Notef("hairpin was checked for %d Services; check the other %d by name", traced, left)
	}
	if traced > 0 {
		e.Notef("the rules let pods reach themselves through their Services; whether the network also does (hairpin mode of the bridge port) cannot be checked from here")
	}
}

// hairpinOf traces the connections of endpoints to their own Service: of all endpoints if
// one Service is examined, else of the first. It reports whether there was one.
func (e *examination) hairpinOf(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules) bool {
	traced := 0
	for _, port := range rules.Spec.Ports {
		usable := known(&rules.Spec, &port, true)
		if len(usable) == 0 {
			usable = known(&rules.Spec, &port, false)
		}
		for _, node := range e.Nodes {
			for _, address := range e.localEndpointsOn(node, name, port) {
				endpoint, err := netip.ParseAddrPort(address)
				if err != nil || !usable.Has(address) {
					continue
				}
				if traced == maxTracedEndpoints {
					e.Notef("hairpin of %s was checked for %d of its endpoints only", name, traced)
					return true
				}
				if !e.ownConnection(name, rules, node, port, endpoint) {
					continue
				}
				if traced++; e.Only == nil {
					return true
				}
			}
		}
	}
	return traced > 0
}

// ownConnection traces the connection of an endpoint to its own Service. It reports whether
// the Service has an address of its family.
func (e *examination) ownConnection(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules, node *v1alpha1.NodeProxyRules, port v1alpha1.ServicePort, endpoint netip.AddrPort) bool {
	family := dataplane.FamilyOf(endpoint.Addr())
	var to netip.AddrPort
	for _, text := range rules.Spec.ClusterIPs {
		if ip, err := netip.ParseAddr(text); err == nil && family.Of(ip) {
			to = netip.AddrPortFrom(ip, uint16(port.Port))
		}
	}
	if !to.IsValid() {
		return false
	}
	if err := e.NewerNode(node); err != nil {
		e.Skip(findings.CheckHairpin, err.Error())
		return false
	}
	set, err := combine.Whole(node, []v1alpha1.ServiceProxyRules{*rules}, family)
	if err != nil {
		e.Skip(findings.CheckHairpin, err.Error())
		return false
	}
	// Package tracer knows by the node's addresses whether the pod uses the host network.
	result, err := e.trace(set, tracer.Packet{Protocol: port.Protocol, Source: endpoint.Addr(), Destination: to})
	if err != nil {
		e.Skip(findings.CheckHairpin, fmt.Sprintf("a packet cannot be traced on %s: %v", node.Name, err))
		return false
	}
	for _, o := range result.Outcomes {
		f := findings.Finding{
			Severity: findings.Problem, Reason: "NoHairpin", Check: findings.CheckHairpin, Service: name.String(), Nodes: []string{node.Name},
			Remedy: fmt.Sprintf("see the rules: kubectl nodeproxy trace --node %s --from %s --to %s/%s", node.Name, endpoint.Addr(), to, port.Protocol),
		}
		switch {
		case o.Fate != tracer.Delivered:
			f.Message = fmt.Sprintf("a pod of the Service that uses the Service itself (%s) cannot connect: %s", endpoint, o.Message)
		case o.Endpoint != nil && *o.Endpoint == endpoint && !o.Masqueraded:
			f.Message = fmt.Sprintf("a pod of the Service that uses the Service itself (%s) gets no reply if the connection returns to it: its source is not masqueraded", endpoint)
		default:
			continue
		}
		e.Add(f)
		break
	}
	return true
}

// trafficPolicies reports nodes without endpoints under traffic policy Local.
func (e *examination) trafficPolicies() {
	for name, rules := range e.used(findings.CheckTrafficPolicy) {
		if rules.Spec.InternalTrafficPolicy != v1alpha1.TrafficPolicyLocal && rules.Spec.ExternalTrafficPolicy != v1alpha1.TrafficPolicyLocal {
			continue
		}
		nodes, ports := e.without(name, rules)
		if len(nodes) == 0 {
			continue
		}
		if rules.Spec.InternalTrafficPolicy == v1alpha1.TrafficPolicyLocal {
			e.internalLocal(name, rules, nodes, ports)
		}
		if rules.Spec.ExternalTrafficPolicy == v1alpha1.TrafficPolicyLocal {
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
		all := known(&rules.Spec, &port, false)
		if len(all) == 0 {
			continue // on no node: see the check of endpoints
		}
		bare := false
		for _, node := range e.Nodes {
			if e.IsNew(node) || all.HasAny(e.localEndpointsOn(node, name, port)...) {
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
	e.Add(findings.Finding{
		Severity: findings.Problem, Reason: "LocalWithoutEndpoint", Check: findings.CheckTrafficPolicy, Service: name.String(), Nodes: nodes,
		Causes: []string{"rendering " + name.String(), "endpoints " + name.String()},
		Message: fmt.Sprintf("internalTrafficPolicy is Local, and no endpoint for port %s is on %s: packets of pods there to the cluster IP are dropped",
			findings.Some(ports), thereOn(nodes)),
		Remedy: "run a pod of it on each node (a DaemonSet), or " + setCluster(name, rules, "set internalTrafficPolicy to Cluster"),
	})
}

func thereOn(nodes []string) string {
	if len(nodes) == 1 {
		return "this node"
	}
	return "these nodes"
}

// setCluster returns a change of the Service, and the policies that may undo it.
func setCluster(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules, change string) string {
	text := change + ": " + editService(name)
	if len(rules.Spec.Policies) > 0 {
		text += fmt.Sprintf(" (these ServiceProxyPolicies also apply: %s)", findings.Some(rules.Spec.Policies))
	}
	return text
}

// externalLocal: packets from outside are dropped there, unless a load balancer avoids the
// node by its health check port.
func (e *examination) externalLocal(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules, nodes []string) {
	f := findings.Finding{Severity: findings.Warning, Check: findings.CheckTrafficPolicy, Service: name.String(), Nodes: nodes}
	if rules.Spec.HealthCheckNodePort != 0 {
		e.Notef("%s has externalTrafficPolicy Local, and no endpoint on %s: its load balancer avoids the node by health check port %d", name, findings.Some(nodes), rules.Spec.HealthCheckNodePort)
		return
	}
	if svc := e.services[name]; svc != nil && svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		f.Reason = "LocalWithoutHealthCheck"
		f.Message = "externalTrafficPolicy is Local, no endpoint is on " + thereOn(nodes) + ", and the Service has no health check port by which the load balancer could avoid it: packets are dropped there"
		f.Remedy = e.Docs.See("set externalTrafficPolicy in the Service itself, which then gets a healthCheckNodePort", "troubleshooting.md#a-load-balancer-takes-a-node-out")
		e.Add(f)
		return
	}
	// No load balancer avoids these nodes.
	var by []string
	if slices.ContainsFunc(rules.Spec.Ports, func(p v1alpha1.ServicePort) bool { return p.NodePort != 0 }) {
		by = append(by, "the node ports")
	}
	if len(rules.Spec.ExternalIPs)+len(rules.Spec.LoadBalancerIPs) > 0 {
		by = append(by, "the external IPs")
	}
	if len(by) == 0 {
		return // clients outside cannot reach it
	}
	f.Reason, f.Causes = "ExternalLocalWithoutEndpoint", []string{"rendering " + name.String(), "endpoints " + name.String()}
	f.Message = fmt.Sprintf("externalTrafficPolicy is Local, and no endpoint is on %s: packets of clients outside to %s are dropped there, because no load balancer with a health check avoids it",
		thereOn(nodes), strings.Join(by, " and "))
	f.Remedy = "send clients only to nodes with endpoints, run a pod of it on each node (a DaemonSet), or " +
		setCluster(name, rules, "set externalTrafficPolicy to Cluster (which masquerades clients' addresses)")
	e.Add(f)
}

package doctor

import (
	"fmt"
	"net/netip"

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
		if !e.concerns(name) {
			continue
		}
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
		all := usable(port)
		for _, node := range e.Nodes {
			for _, member := range e.membersOn(node, name, port) {
				endpoint, err := netip.ParseAddrPort(member)
				if err != nil || !all[member] {
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
	family := dataplane.IPv4
	if endpoint.Addr().Is6() {
		family = dataplane.IPv6
	}
	var to netip.AddrPort
	for _, text := range rules.Spec.ClusterIPs {
		if ip, err := netip.ParseAddr(text); err == nil && family.Of(ip) {
			to = netip.AddrPortFrom(ip, uint16(port.Port))
		}
	}
	if !to.IsValid() {
		return false
	}
	if err := e.Newer("NodeProxyRules "+node.Name, node.Spec.FormatVersion, string(e.Docs)); err != nil {
		e.Skip(findings.CheckHairpin, err.Error())
		return false
	}
	set, err := combine.Whole(node, []v1alpha1.ServiceProxyRules{*rules}, family)
	if err != nil {
		e.Skip(findings.CheckHairpin, err.Error())
		return false
	}
	// The tracer knows by the node's addresses whether the pod uses the host network.
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
			f.Message = fmt.Sprintf("a pod of the Service that uses the Service itself (%s) cannot connect: %s", endpoint, o.Why)
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

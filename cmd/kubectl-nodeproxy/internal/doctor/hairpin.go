package doctor

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/tracer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// mostTraced bounds of how many Services a pod's own connection is followed, where all
// are looked at.
const mostTraced = 300

// mostOwn bounds the same of the endpoints of the one Service that is asked for. Each
// is followed through the rules of all of them.
const mostOwn = 20

// Trace tells what becomes of a packet on the node of a set.
type Trace func(*combine.Set, tracer.Packet) (*tracer.Result, error)

// hairpin looks whether a pod that uses its own Service gets an answer: where the
// connection comes back to the pod itself, the node must have put its own address in
// the place of the pod's, or the pod would answer itself.
func (e *examination) hairpin() {
	traced, left := 0, 0
	for name, rules := range e.used(CheckHairpin) {
		if !e.concerns(name) {
			continue
		}
		if traced == mostTraced {
			left++
			continue
		}
		if e.hairpinOf(name, rules) {
			traced++
		}
	}
	if left > 0 {
		e.remark("whether pods reach themselves was looked at for %d Services; for others ask by name (%d are left)", traced, left)
	}
	if traced > 0 {
		e.remark("pods reach themselves through their Services by the rules of the nodes; that the network lets a packet back to the pod that it came from (hairpin mode of its bridge port) cannot be seen from here")
	}
}

// hairpinOf follows the own connections of endpoints of a Service: of all where one
// Service is asked for, else of the first that is found. It reports whether there was
// one.
func (e *examination) hairpinOf(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules) bool {
	traced := 0
	for _, port := range rules.Spec.Ports {
		all := usable(port)
		for _, node := range e.nodes {
			for _, member := range e.membersOn(node, name, port) {
				endpoint, err := netip.ParseAddrPort(member)
				if err != nil || !all[member] {
					continue
				}
				if traced == mostOwn {
					e.remark("whether pods of %s reach themselves was looked at for %d of its endpoints, and there are more", name, traced)
					return true
				}
				if !e.ownConnection(name, rules, node, port, endpoint) {
					continue
				}
				if traced++; e.only == nil {
					return true
				}
			}
		}
	}
	return traced > 0
}

// ownConnection follows the connection of an endpoint to its Service. It reports
// whether the Service has an address of its family.
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
	if err := e.Newer("NodeProxyRules "+node.Name, node.Spec.FormatVersion, string(e.docs)); err != nil {
		e.cannot(CheckHairpin, err.Error())
		return false
	}
	set, err := combine.Whole(node, []v1alpha1.ServiceProxyRules{*rules}, family)
	if err != nil {
		e.cannot(CheckHairpin, err.Error())
		return false
	}
	// That it is a pod, or one in the network of the node, which is a process to the
	// rules, the tracer knows by the node's addresses and endpoints.
	result, err := e.trace(set, tracer.Packet{Protocol: port.Protocol, Source: endpoint.Addr(), Destination: to})
	if err != nil {
		e.cannot(CheckHairpin, fmt.Sprintf("the way of a packet on %s cannot be told: %v", node.Name, err))
		return false
	}
	for _, o := range result.Outcomes {
		f := Finding{
			Severity: Problem, Name: "NoHairpin", Check: CheckHairpin, Service: name.String(), Nodes: []string{node.Name},
			Do: fmt.Sprintf("see by which rules: kubectl nodeproxy trace --node %s --from %s --to %s/%s", node.Name, endpoint.Addr(), to, port.Protocol),
		}
		switch {
		case o.Fate != tracer.Delivered:
			f.What = fmt.Sprintf("a pod of the Service that uses it itself (%s) is refused: %s", endpoint, o.Why)
		case o.Endpoint != nil && *o.Endpoint == endpoint && !o.Masqueraded:
			f.What = fmt.Sprintf("a pod of the Service that uses it itself (%s) gets no answer where its connection comes back to it: its source is not masqueraded", endpoint)
		default:
			continue
		}
		e.add(f)
		break
	}
	return true
}

package tracer

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Fate is what may happen to a packet.
type Fate = kernelmodel.Fate

// Fates of packets.
const (
	Delivered = kernelmodel.Delivered
	Rejected  = kernelmodel.Rejected
	Dropped   = kernelmodel.Dropped
	Accepted  = kernelmodel.Accepted
	Passed    = kernelmodel.Passed
)

// Step is a rule, map, set or virtual server that a packet meets.
type Step = kernelmodel.Step

// Kinds of steps that are not rules of iptables.
const (
	NFTablesRule  = kernelmodel.NFTablesRule
	VirtualServer = kernelmodel.VirtualServer
)

// Result is what happens to a packet.
type Result struct {
	Mode        v1alpha1.ProxyMode `json:"mode"`
	Family      dataplane.Family   `json:"family"`
	Protocol    v1alpha1.Protocol  `json:"protocol"`
	Source      netip.Addr         `json:"source"`
	Origin      Origin             `json:"origin"`
	Destination netip.AddrPort     `json:"destination"`
	// Service has the destination; nil: no Service has it.
	Service *Target `json:"service,omitempty"`
	// AffinitySeconds is for how long the client gets the same endpoint; 0: each connection may
	// get another one.
	AffinitySeconds int32     `json:"affinitySeconds,omitempty"`
	Outcomes        []Outcome `json:"outcomes"`
	// Notes are further facts, such as what of the Service is not served.
	Notes []string `json:"notes,omitempty"`
}

// Target is the port of a Service that a packet is for.
type Target struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      string `json:"port,omitempty"`
	// AddressType is what the destination is to the Service.
	AddressType dataplane.Kind `json:"addressType"`
}

// String names the port as rules do.
func (t *Target) String() string {
	if t.Port == "" {
		return t.Namespace + "/" + t.Name
	}
	return t.Namespace + "/" + t.Name + ":" + t.Port
}

// kinds are the kinds of destinations, human-readable.
var kinds = map[dataplane.Kind]string{
	dataplane.ClusterIP: "cluster IP", dataplane.ExternalIP: "external IP", dataplane.LoadBalancerIP: "load-balancer IP", dataplane.NodePort: "node port",
}

// Text returns what the destination is, human-readable, as in "cluster IP of shop/web".
func (t *Target) Text() string { return kinds[t.AddressType] + " of " + t.String() }

// Outcome is one of the things that may happen to a packet.
type Outcome struct {
	Fate Fate `json:"fate"`
	// Share is its probability, 0 to 1.
	Share float64 `json:"share"`
	// Endpoint is the new destination, if Delivered.
	Endpoint *netip.AddrPort `json:"endpoint,omitempty"`
	// Masqueraded: the source becomes an address of the node.
	Masqueraded bool `json:"masqueraded"`
	// Message is why it is rejected, dropped or passed, human-readable.
	Message string `json:"message,omitempty"`
	// Steps are what it meets, in order. If it is rejected, the last one did it.
	Steps []Step `json:"steps"`
}

// Via are the chains and maps, or the virtual server, that lead to the outcome, and the endpoint or
// verdict at the end.
func (o *Outcome) Via() []string {
	var out []string
	translated := false
	for _, s := range o.Steps {
		switch {
		case s.Kind == kernelmodel.VirtualServer:
			out, translated = append(out, "virtual server "+s.Chain, s.Target), true
		case translated || s.Kind == kernelmodel.IPTablesRule && s.Table != "nat" || s.Chain == "POSTROUTING":
		case s.IsLookup():
			if s.Kind == kernelmodel.Map && s.Target != "" {
				out = append(out, "map "+s.Chain)
			}
		case s.To.IsValid():
			out, translated = append(out, s.To.String()), true
		case strings.Contains(s.Target, "-"): // a chain: ends of tables have no prefix
			out = append(out, s.Target)
		}
	}
	last := len(o.Steps) - 1
	switch {
	case o.Fate == Delivered:
		return out
	case last < 0 || o.Fate == Accepted || o.Fate == Passed:
		return append(out, string(o.Fate))
	}
	switch by := o.Steps[last]; {
	case by.Kind == kernelmodel.VirtualServer: // it has rejected the packet
		return out
	case by.Kind == kernelmodel.IPTablesRule:
		return append(out, by.Table+" "+by.Chain, string(o.Fate))
	case len(out) == 0 || out[len(out)-1] != by.Chain:
		out = append(out, by.Chain)
	}
	return append(out, string(o.Fate))
}

// question is a packet and the rules for it.
type question struct {
	*Tracer
	*kernel
	services map[dataplane.ServiceName]*dataplane.Service
	packet   kernelmodel.Packet
	protocol v1alpha1.Protocol
}

// answer assembles the result.
func (q *question) answer(origin Origin, outcomes []kernelmodel.Outcome) *Result {
	out := &Result{
		Mode: q.set.Mode, Family: q.set.Family, Protocol: q.protocol, Origin: origin,
		Source: q.packet.Source, Destination: q.packet.Destination,
	}
	svc, port, kind := q.owner()
	if svc != nil {
		out.Service = &Target{Namespace: svc.Name.Namespace, Name: svc.Name.Name, Port: port.Name, AddressType: kind}
		out.AffinitySeconds = svc.AffinitySeconds
	}
	for _, o := range outcomes {
		one := Outcome{Fate: o.Fate, Share: o.Share, Masqueraded: o.Masqueraded, Steps: o.Path}
		if o.Fate == Delivered {
			one.Endpoint = &o.Endpoint
		} else {
			one.Message = q.why(o.Fate, svc, port, kind)
		}
		out.Outcomes = append(out.Outcomes, one)
	}
	out.Notes = q.notes()
	return out
}

// owner finds the Service that has the packet's destination, first by address, then by node port.
func (q *question) owner() (*dataplane.Service, *dataplane.Port, dataplane.Kind) {
	to := q.packet.Destination
	for _, byNodePort := range []bool{false, true} {
		for _, svc := range slices.SortedFunc(maps.Values(q.services), (*dataplane.Service).ComparePrecedence) {
			for d := range svc.Destinations() {
				found := d.AddrPort() == to
				if byNodePort {
					found = d.Kind == dataplane.NodePort && d.Number == to.Port() && q.ofNode(to.Addr())
				}
				if found && d.Port.Protocol == q.protocol {
					return svc, d.Port, d.Kind
				}
			}
		}
	}
	return nil, nil, ""
}

// kindOf returns what an address is to a Service.
func (q *question) kindOf(svc *dataplane.Service, a netip.Addr) (dataplane.Kind, bool) {
	switch {
	case svc.ClusterIP == a:
		return dataplane.ClusterIP, true
	case slices.Contains(svc.ExternalIPs, a):
		return dataplane.ExternalIP, true
	case slices.Contains(svc.LoadBalancerIPs, a):
		return dataplane.LoadBalancerIP, true
	}
	return "", false
}

// ofNode reports whether the node itself has an address.
func (q *question) ofNode(a netip.Addr) bool {
	return a.IsLoopback() || slices.Contains(q.addresses, a)
}

// why returns, human-readable, why a packet does not reach an endpoint.
func (q *question) why(fate Fate, svc *dataplane.Service, port *dataplane.Port, kind dataplane.Kind) string {
	if svc == nil {
		return q.unowned(fate)
	}
	name := (&Target{Namespace: svc.Name.Namespace, Name: svc.Name.Name, Port: port.Name}).String()
	policy, local := "external", svc.ExternalLocal
	if kind == dataplane.ClusterIP {
		policy, local = "internal", svc.InternalLocal
	}
	mode := modes.Of(q.set.Mode)
	switch {
	case (fate == Accepted || fate == Passed) && mode.Unserved(svc, q.set.Node.Addresses, q.packet.Destination.Addr()):
		return fmt.Sprintf("%s is the address of another Node: in mode %s %s is not served there, because this node would be cut off from that one", q.packet.Destination.Addr(), mode.Mode, name)
	case fate == Accepted || fate == Passed:
		if kind == dataplane.NodePort && port.Available {
			return fmt.Sprintf("the node port of %s does not answer on %s: see spec.settings.nodePorts", name, q.packet.Destination.Addr())
		}
		return fmt.Sprintf("no rule matches it, although it is for %s", name)
	case fate == Dropped && slices.Contains(svc.LoadBalancerIPs, q.packet.Destination.Addr()) && q.outOfRange(svc): // ranges only drop
		return fmt.Sprintf("%s is outside of the source ranges of %s: %s", q.packet.Source, name, join(svc.SourceRanges))
	case !port.Available:
		return fmt.Sprintf("%s has no endpoint anywhere that is ready, or terminating and still serving", name)
	case local && len(port.Local) == 0:
		return fmt.Sprintf("the %s traffic policy of %s is Local, and none of its endpoints on %s is ready, or terminating and still serving", policy, name, q.set.NodeName)
	}
	return fmt.Sprintf("the last rule that it meets rejects it, although %s has endpoints", name)
}

// outOfRange reports whether a load balancer's source ranges exclude the client.
func (q *question) outOfRange(svc *dataplane.Service) bool {
	return len(svc.SourceRanges) > 0 &&
		!slices.ContainsFunc(svc.SourceRanges, func(p netip.Prefix) bool { return p.Contains(q.packet.Source) })
}

// unowned returns what happens to a packet whose destination no Service has.
func (q *question) unowned(fate Fate) string {
	to := q.packet.Destination
	of := ""
	for _, name := range slices.SortedFunc(maps.Keys(q.services), dataplane.ServiceName.Compare) {
		if kind, has := q.kindOf(q.services[name], to.Addr()); has {
			of = fmt.Sprintf("%s is the %s of %s, which does not have port %d/%s", to.Addr(), kinds[kind], name, to.Port(), q.protocol)
			break
		}
	}
	switch {
	case fate == Rejected || fate == Dropped:
		if of == "" {
			return "no Service has this destination" + q.perhapsNodePort()
		}
		return of
	case of != "":
		return of + "; no rule matches it"
	}
	return "no Service has this destination, and no rule matches it: it continues to the owner of the address" + q.perhapsNodePort()
}

// perhapsNodePort returns which Service has the port as node port: the address may be one of the node that
// its rules do not list.
func (q *question) perhapsNodePort() string {
	to := q.packet.Destination
	for _, name := range slices.SortedFunc(maps.Keys(q.services), dataplane.ServiceName.Compare) {
		if slices.ContainsFunc(q.services[name].Ports, func(p dataplane.Port) bool { return p.NodePort == to.Port() && p.Protocol == q.protocol }) {
			return fmt.Sprintf("; %d/%s is the node port of %s: nodes answer it at their own addresses, and the rules of %s do not list %s (spec.node.addresses)", to.Port(), q.protocol, name, q.set.NodeName, to.Addr())
		}
	}
	return ""
}

// notes lists what of the Services of this destination is not served.
func (q *question) notes() []string {
	var out []string
	to := q.packet.Destination
	for _, name := range slices.SortedFunc(maps.Keys(q.services), dataplane.ServiceName.Compare) {
		svc := q.services[name]
		_, has := q.kindOf(svc, to.Addr())
		for i := range svc.Ports {
			p := &svc.Ports[i]
			has = has || p.NodePort == to.Port() && q.ofNode(to.Addr())
			if p.Port == to.Port() && p.Protocol == q.protocol && !p.Serves(to.Addr()) {
				out = append(out, fmt.Sprintf("Service %s claims %s too, but another Service has precedence", name, to))
			}
		}
		if !has {
			continue
		}
		if why := q.result.Rejected[name]; why != "" {
			out = append(out, fmt.Sprintf("Service %s: %s", name, why))
		}
		for _, problem := range q.set.Problems[name] {
			out = append(out, fmt.Sprintf("ServiceProxyRules %s: %s", v1alpha1.ServiceProxyRulesName(name.Namespace, name.Name), problem))
		}
	}
	return out
}

// join lists ranges.
func join(ranges []netip.Prefix) string {
	out := make([]string, 0, len(ranges))
	for _, r := range ranges {
		out = append(out, r.String())
	}
	return strings.Join(out, ", ")
}

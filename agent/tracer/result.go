package tracer

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablesmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Fate is what may become of a packet.
type Fate = iptablesmodel.Fate

// Fates of packets.
const (
	Delivered = iptablesmodel.Delivered
	Rejected  = iptablesmodel.Rejected
	Dropped   = iptablesmodel.Dropped
	Accepted  = iptablesmodel.Accepted
	Passed    = iptablesmodel.Passed
)

// Step is a rule that a packet has met, or a virtual server.
type Step = iptablesmodel.Step

// Result is what becomes of a packet.
type Result struct {
	Mode        v1alpha1.ProxyMode `json:"mode"`
	Family      dataplane.Family   `json:"family"`
	Protocol    v1alpha1.Protocol  `json:"protocol"`
	Source      netip.Addr         `json:"source"`
	Origin      Origin             `json:"origin"`
	Destination netip.AddrPort     `json:"destination"`
	// Service is whose destination it is; nil: no Service's.
	Service *Target `json:"service,omitempty"`
	// AffinitySeconds is how long the client keeps the endpoint that it gets; 0: each
	// connection may get another one.
	AffinitySeconds int32     `json:"affinitySeconds,omitempty"`
	Outcomes        []Outcome `json:"outcomes"`
	// Notes say what else there is to know, such as what of the Service is not
	// served.
	Notes []string `json:"notes,omitempty"`
}

// Target is the port of a Service that a packet is for.
type Target struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      string `json:"port,omitempty"`
	// Kind is what the destination is to the Service.
	Kind Kind `json:"kind"`
}

// String names the port as rules do.
func (t *Target) String() string {
	if t.Port == "" {
		return t.Namespace + "/" + t.Name
	}
	return t.Namespace + "/" + t.Name + ":" + t.Port
}

// Kind is what a destination is to its Service.
type Kind string

// Kinds of destinations.
const (
	ClusterIP      Kind = "cluster IP"
	ExternalIP     Kind = "external IP"
	LoadBalancerIP Kind = "load-balancer IP"
	NodePort       Kind = "node port"
)

var kinds = map[dataplane.Kind]Kind{
	dataplane.ClusterIP: ClusterIP, dataplane.ExternalIP: ExternalIP, dataplane.LoadBalancerIP: LoadBalancerIP, dataplane.NodePort: NodePort,
}

// Outcome is one of the things that may become of a packet.
type Outcome struct {
	Fate Fate `json:"fate"`
	// Share is how probable it is, 0 to 1.
	Share float64 `json:"share"`
	// Endpoint is the new destination, if Delivered.
	Endpoint *netip.AddrPort `json:"endpoint,omitempty"`
	// Masqueraded: the source becomes an address of the node.
	Masqueraded bool `json:"masqueraded"`
	// Why it is rejected, dropped or let pass, human-readable.
	Why string `json:"why,omitempty"`
	// Steps are the rules that it meets, in order. Where it is rejected, the last
	// one did it.
	Steps []Step `json:"steps"`
}

// Via are the chains, or the virtual server, that lead to the outcome, and the
// endpoint or verdict at the end.
func (o *Outcome) Via() []string {
	var out []string
	translated := false
	for _, s := range o.Steps {
		switch {
		case s.Balanced():
			out, translated = append(out, "virtual server "+s.Chain, s.Target), true
		case translated || s.Table != "nat" || s.Chain == "POSTROUTING":
		case s.Target == "DNAT":
			_, to, _ := strings.Cut(s.Rule, "--to-destination ")
			out, translated = append(out, to), true
		case isChain(s.Target):
			out = append(out, s.Target)
		}
	}
	last := len(o.Steps) - 1
	switch {
	case o.Fate == Delivered:
		return out
	case last < 0 || o.Fate == Accepted || o.Fate == Passed:
		return append(out, string(o.Fate))
	case o.Steps[last].Balanced():
		return out // the virtual server has refused it
	}
	return append(out, o.Steps[last].Table+" "+o.Steps[last].Chain, string(o.Fate))
}

// isChain reports whether a target is a chain: ends of tables have no prefix.
func isChain(target string) bool { return strings.Contains(target, "-") }

// question is a packet and what is programmed for it.
type question struct {
	*Tracer
	*kernel
	services map[dataplane.ServiceName]*dataplane.Service
	packet   iptablesmodel.Packet
	protocol v1alpha1.Protocol
}

// answer puts together what has been found out.
func (q *question) answer(origin Origin, outcomes []iptablesmodel.Outcome) *Result {
	out := &Result{
		Mode: q.set.Mode, Family: q.set.Family, Protocol: q.protocol, Origin: origin,
		Source: q.packet.Source, Destination: q.packet.Destination,
	}
	svc, port, kind := q.owner()
	if svc != nil {
		out.Service = &Target{Namespace: svc.Name.Namespace, Name: svc.Name.Name, Port: port.Name, Kind: kind}
		out.AffinitySeconds = svc.AffinitySeconds
	}
	for _, o := range outcomes {
		one := Outcome{Fate: o.Fate, Share: o.Share, Masqueraded: o.Masqueraded, Steps: o.Path}
		if o.Fate == Delivered {
			one.Endpoint = &o.Endpoint
		} else {
			one.Why = q.why(o.Fate, svc, port, kind)
		}
		out.Outcomes = append(out.Outcomes, one)
	}
	out.Notes = q.notes()
	return out
}

// owner finds the Service that has the packet's destination.
func (q *question) owner() (*dataplane.Service, *dataplane.Port, Kind) {
	to := q.packet.Destination
	for _, svc := range slices.SortedFunc(maps.Values(q.services), (*dataplane.Service).ComparePrecedence) {
		for d := range svc.Destinations() {
			if d.Port.Protocol == q.protocol && d.AddrPort() == to {
				return svc, d.Port, kinds[d.Kind]
			}
		}
	}
	for _, svc := range slices.SortedFunc(maps.Values(q.services), (*dataplane.Service).ComparePrecedence) {
		for d := range svc.Destinations() {
			if d.Kind == dataplane.NodePort && d.Port.Protocol == q.protocol && d.Number == to.Port() && q.ofNode(to.Addr()) {
				return svc, d.Port, NodePort
			}
		}
	}
	return nil, nil, ""
}

// kindOf is what an address is to a Service.
func (q *question) kindOf(svc *dataplane.Service, a netip.Addr) (Kind, bool) {
	switch {
	case svc.ClusterIP == a:
		return ClusterIP, true
	case slices.Contains(svc.ExternalIPs, a):
		return ExternalIP, true
	case slices.Contains(svc.LoadBalancerIPs, a):
		return LoadBalancerIP, true
	}
	return "", false
}

// ofNode reports whether the node has an address besides those of Services.
func (q *question) ofNode(a netip.Addr) bool {
	return a.IsLoopback() || slices.Contains(q.addresses, a)
}

// why says in words why a packet does not get to an endpoint.
func (q *question) why(fate Fate, svc *dataplane.Service, port *dataplane.Port, kind Kind) string {
	if svc == nil {
		return q.nobodys(fate)
	}
	name := (&Target{Namespace: svc.Name.Namespace, Name: svc.Name.Name, Port: port.Name}).String()
	policy, local := "external", svc.ExternalLocal
	if kind == ClusterIP {
		policy, local = "internal", svc.InternalLocal
	}
	mode := modes.Of(q.set.Mode)
	switch {
	case (fate == Accepted || fate == Passed) && mode.Unserved(svc, q.set.Node.Addresses, q.packet.Destination.Addr()):
		return fmt.Sprintf("%s is the address of another Node: in mode %s %s is not served there, because this node would be cut off from that one", q.packet.Destination.Addr(), mode.Mode, name)
	case fate == Accepted || fate == Passed:
		if kind == NodePort && port.Available {
			return fmt.Sprintf("the node port of %s does not answer on %s: see spec.settings.nodePorts", name, q.packet.Destination.Addr())
		}
		return fmt.Sprintf("no rule matches it, although it is for %s", name)
	case fate == Dropped && kind == LoadBalancerIP && q.outOfRange(svc): // ranges only drop
		return fmt.Sprintf("%s is outside of the source ranges of %s: %s", q.packet.Source, name, join(svc.SourceRanges))
	case !port.Available:
		return fmt.Sprintf("%s has no endpoint anywhere that is ready, or terminating and still serving", name)
	case local && len(port.Local) == 0:
		return fmt.Sprintf("the %s traffic policy of %s is Local, and none of its endpoints on %s is ready, or terminating and still serving", policy, name, q.set.NodeName)
	}
	return fmt.Sprintf("the last rule of its way refuses it, although %s has endpoints", name)
}

// outOfRange reports whether a load balancer's source ranges leave the client out.
func (q *question) outOfRange(svc *dataplane.Service) bool {
	return len(svc.SourceRanges) > 0 &&
		!slices.ContainsFunc(svc.SourceRanges, func(p netip.Prefix) bool { return p.Contains(q.packet.Source) })
}

// nobodys says what becomes of a packet whose destination is no Service's.
func (q *question) nobodys(fate Fate) string {
	to := q.packet.Destination
	of := ""
	for _, name := range slices.SortedFunc(maps.Keys(q.services), dataplane.ServiceName.Compare) {
		if kind, has := q.kindOf(q.services[name], to.Addr()); has {
			of = fmt.Sprintf("%s is the %s of %s, which does not have port %d/%s", to.Addr(), kind, name, to.Port(), q.protocol)
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
	return "no Service has this destination, and no rule matches it: it goes on to whoever has the address" + q.perhapsNodePort()
}

// perhapsNodePort says whose node port the port is: the address may be one of the node
// that its rules do not list.
func (q *question) perhapsNodePort() string {
	to := q.packet.Destination
	for _, name := range slices.SortedFunc(maps.Keys(q.services), dataplane.ServiceName.Compare) {
		if slices.ContainsFunc(q.services[name].Ports, func(p dataplane.Port) bool { return p.NodePort == to.Port() && p.Protocol == q.protocol }) {
			return fmt.Sprintf("; %d/%s is the node port of %s: nodes answer it at their own addresses, and the rules of %s do not list %s (spec.node.addresses)", to.Port(), q.protocol, name, q.set.NodeName, to.Addr())
		}
	}
	return ""
}

// notes say what of the Services of this destination is not served.
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
				out = append(out, fmt.Sprintf("Service %s asks for %s too and does not get it: another Service has the better claim", name, to))
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

package combine

import (
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// group is an endpoint group with its usable endpoints of the family.
type group struct {
	source    *v1alpha1.EndpointGroup
	endpoints []endpoint
}

// selectEndpoints fills the port's lists: those under policy Cluster only
// where some traffic is under it, those under policy Local likewise.
func (r *reader) selectEndpoints(svc *dataplane.Service, port *dataplane.Port, source *v1alpha1.ServicePort, node Node) {
	ready, terminating := r.groups(source)
	if svc.HealthCheckNodePort != 0 {
		r.noteReady(port.Members, ready)
	}
	external := svc.ExternallyAccessible(port)
	if !svc.InternalLocal || external {
		port.Cluster = collect(ready, availableTo(ready, node))
		if len(port.Cluster) == 0 {
			port.Cluster = collect(terminating, all)
		}
		port.Available = len(port.Cluster) > 0
	}
	if svc.InternalLocal || (svc.ExternalLocal && external) {
		port.Available = port.Available || len(ready) > 0 || len(terminating) > 0
		port.Local = among(port.Members, collect(ready, all))
		if len(port.Local) == 0 {
			port.Local = among(port.Members, collect(terminating, all))
		}
	}
	if port.Protocol != v1alpha1.ProtocolSCTP {
		port.Serving = collect(slices.Concat(ready, terminating), all)
		if slices.Equal(port.Serving, port.Cluster) {
			port.Serving = port.Cluster // nearly always; kept once
		}
	}
}

// noteReady notes the members that are ready, by their addresses. Terminating
// ones serve as long as there is no better, but load balancers are to turn away.
func (r *reader) noteReady(members []netip.AddrPort, ready []group) {
	if r.localReady == nil {
		r.localReady = map[netip.Addr]struct{}{}
	}
	if len(members) == 0 {
		return
	}
	here := setOf(members)
	for _, g := range ready {
		for _, e := range g.endpoints {
			if _, member := here[e.AddrPort]; member {
				r.localReady[e.Addr()] = struct{}{}
			}
		}
	}
}

// groups splits the port's groups by state, without those that hold nothing
// of this family.
func (r *reader) groups(source *v1alpha1.ServicePort) (ready, terminating []group) {
	for i := range source.Endpoints {
		g := group{source: &source.Endpoints[i]}
		for _, text := range g.source.Addresses {
			if e, ok := r.endpoint(text); ok {
				g.endpoints = append(g.endpoints, e)
			}
		}
		if len(g.endpoints) == 0 {
			continue
		}
		switch g.source.State {
		case v1alpha1.EndpointReady:
			ready = append(ready, g)
		case v1alpha1.EndpointTerminating:
			terminating = append(terminating, g)
		default:
			r.report("endpoint state %q is neither Ready nor Terminating; %d endpoints skipped", g.source.State, len(g.endpoints))
		}
	}
	return ready, terminating
}

// availableTo says which of the ready groups the node may use, by their hints
// alone: those for this node, if every group has node hints and some group has
// this one; else likewise by zone; else all.
func availableTo(ready []group, node Node) func(*v1alpha1.EndpointGroup) bool {
	forNode := func(g *v1alpha1.EndpointGroup) bool { return slices.Contains(g.Nodes, node.Name) }
	forZone := func(g *v1alpha1.EndpointGroup) bool { return slices.Contains(g.Zones, node.Zone) }
	nodeHints, zoneHints := true, node.Zone != ""
	forSome := struct{ node, zone bool }{}
	for _, g := range ready {
		nodeHints = nodeHints && len(g.source.Nodes) > 0
		zoneHints = zoneHints && len(g.source.Zones) > 0
		forSome.node = forSome.node || forNode(g.source)
		forSome.zone = forSome.zone || forZone(g.source)
	}
	switch {
	case nodeHints && forSome.node:
		return forNode
	case zoneHints && forSome.zone:
		return forZone
	default:
		return all
	}
}

func all(*v1alpha1.EndpointGroup) bool { return true }

func collect(groups []group, wanted func(*v1alpha1.EndpointGroup) bool) []netip.AddrPort {
	var found []endpoint
	for _, g := range groups {
		if wanted(g.source) {
			found = append(found, g.endpoints...)
		}
	}
	return sortedEndpoints(found)
}

// among returns those of list that are members.
func among(members, list []netip.AddrPort) []netip.AddrPort {
	if len(members) == 0 {
		return nil
	}
	var local []netip.AddrPort
	here := setOf(members)
	for _, e := range list {
		if _, member := here[e]; member {
			local = append(local, e)
		}
	}
	return local
}

func setOf(list []netip.AddrPort) map[netip.AddrPort]struct{} {
	set := make(map[netip.AddrPort]struct{}, len(list))
	for _, e := range list {
		set[e] = struct{}{}
	}
	return set
}

// Equal reports whether two Services, either of which may be nil, are to be
// served in the same way.
func Equal(a, b *dataplane.Service) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Name == b.Name && a.Precedence.Compare(b.Precedence) == 0 && a.ClusterIP == b.ClusterIP &&
		a.ExternalLocal == b.ExternalLocal && a.InternalLocal == b.InternalLocal &&
		a.AffinitySeconds == b.AffinitySeconds && a.HealthCheckNodePort == b.HealthCheckNodePort &&
		a.LocalReady == b.LocalReady &&
		a.IPVSScheduler == b.IPVSScheduler &&
		slices.Equal(a.ExternalIPs, b.ExternalIPs) && slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) &&
		slices.Equal(a.NodeAddresses, b.NodeAddresses) &&
		slices.Equal(a.SourceRanges, b.SourceRanges) &&
		slices.EqualFunc(a.Ports, b.Ports, equalPort)
}

func equalPort(a, b dataplane.Port) bool {
	return a.Name == b.Name && a.Protocol == b.Protocol && a.Port == b.Port && a.NodePort == b.NodePort &&
		a.Available == b.Available &&
		slices.Equal(a.Cluster, b.Cluster) && slices.Equal(a.Local, b.Local) &&
		slices.Equal(a.Members, b.Members) && slices.Equal(a.Lost, b.Lost) &&
		// A TCP connection that waits for its first answer goes where the rules lead,
		// or led: the other lists tell when one is left.
		(a.Protocol != v1alpha1.ProtocolUDP || slices.Equal(a.Serving, b.Serving))
}

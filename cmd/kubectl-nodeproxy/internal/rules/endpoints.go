package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Endpoint is an endpoint of a port, and whether the node uses it.
type Endpoint struct {
	Address string `json:"address"`
	// State is Ready, Terminating or NotReady.
	State string `json:"state"`
	// OnNode: it is on this node.
	OnNode bool `json:"onNode"`
	// Cluster and Local report by traffic policy whether it is used; nil: no traffic has that
	// policy.
	Cluster *Use `json:"cluster,omitempty"`
	Local   *Use `json:"local,omitempty"`
}

// Use is whether an endpoint is used, and why not.
type Use struct {
	Used    bool   `json:"used"`
	Message string `json:"message,omitempty"`
}

// String returns yes, or no with the reason.
func (u *Use) String() string {
	switch {
	case u == nil:
		return "-"
	case u.Used:
		return "yes"
	}
	return "no: " + u.Message
}

// portOf returns a port as the object has it, or nil.
func portOf(spec *v1alpha1.ServiceProxyRulesSpec, p *dataplane.Port) *v1alpha1.ServicePort {
	for i := range spec.Ports {
		if o := &spec.Ports[i]; o.Name == p.Name && o.Protocol == p.Protocol && o.Port == int32(p.Port) {
			return o
		}
	}
	return nil
}

// explain reports for each endpoint of a port whether it is used, and why not.
func explain(p *Port, source *dataplane.Port, endpoints []v1alpha1.PortEndpoints, f dataplane.Family, node *v1alpha1.NodeProxyRules) []Endpoint {
	type candidate struct {
		at    netip.AddrPort
		group *v1alpha1.EndpointGroup // nil: not ready
	}
	var all []candidate
	ready := false
	for _, g := range endpoints {
		for text := range g.All() {
			if at, err := netip.ParseAddrPort(text); err == nil && f.Of(at.Addr()) {
				all = append(all, candidate{at, g.EndpointGroup})
				ready = ready || g.Effective() == v1alpha1.EndpointReady
			}
		}
	}
	for _, at := range source.LocalEndpoints {
		if !slices.ContainsFunc(all, func(c candidate) bool { return c.at == at }) {
			all = append(all, candidate{at, nil})
		}
	}
	var list []Endpoint
	for _, c := range all {
		e := Endpoint{Address: c.at.String(), State: "NotReady", OnNode: slices.Contains(source.LocalEndpoints, c.at)}
		if c.group != nil {
			e.State = string(c.group.Effective())
		}
		if p.UsesCluster {
			e.Cluster = inCluster(source, c.at, c.group, ready, node)
		}
		if p.UsesLocal {
			e.Local = inLocal(source, c.at, c.group, e.OnNode)
		}
		list = append(list, e)
	}
	return list
}

func inCluster(source *dataplane.Port, at netip.AddrPort, g *v1alpha1.EndpointGroup, ready bool, node *v1alpha1.NodeProxyRules) *Use {
	switch {
	case g == nil:
		return &Use{Message: "not ready"}
	case slices.Contains(source.Cluster, at):
		return &Use{Used: true}
	case g.Effective() == v1alpha1.EndpointTerminating && ready:
		return &Use{Message: "it is terminating, and others are ready"}
	case len(g.Nodes) > 0 && !slices.Contains(g.Nodes, node.Name):
		return &Use{Message: "hinted for " + strings.Join(g.Nodes, ", ")}
	case len(g.Zones) > 0 && !slices.Contains(g.Zones, node.Spec.Node.Zone):
		return &Use{Message: fmt.Sprintf("hinted for zone %s, but the node is in %q", strings.Join(g.Zones, ", "), node.Spec.Node.Zone)}
	default:
		return &Use{Message: "it is unusable"}
	}
}

func inLocal(source *dataplane.Port, at netip.AddrPort, g *v1alpha1.EndpointGroup, onNode bool) *Use {
	switch {
	case g == nil:
		return &Use{Message: "not ready"}
	case slices.Contains(source.Local, at):
		return &Use{Used: true}
	case !onNode:
		return &Use{Message: "it is on another node"}
	default:
		return &Use{Message: "it is terminating, and others on this node are ready"}
	}
}

// lost lists the claims of a Service that another one owns.
func lost(svc *dataplane.Service, set *combine.Set, spec *v1alpha1.ServiceProxyRulesSpec) []Lost {
	everywhere := set.Family.Unspecified()
	var list []Lost
	add := func(address string, claim combine.Claim) {
		owner := "another Service"
		if name, found := set.Holders.At(spec, claim); found {
			owner = name.String()
		}
		list = append(list, Lost{Address: address, Owner: owner})
	}
	if port := spec.HealthCheckNodePort; port > 0 && port <= 65535 && svc.HealthCheckNodePort == 0 {
		add(fmt.Sprintf("health check node port %d", port), combine.Claim{Address: everywhere, Port: uint16(port), Protocol: v1alpha1.ProtocolTCP})
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for _, a := range p.Lost {
			add(fmt.Sprintf("%s/%s", netip.AddrPortFrom(a, p.Port), p.Protocol), combine.Claim{Address: a, Port: p.Port, Protocol: p.Protocol})
		}
		if o := portOf(spec, p); o != nil && o.NodePort > 0 && o.NodePort <= 65535 && p.NodePort == 0 {
			add(fmt.Sprintf("node port %d/%s", o.NodePort, p.Protocol), combine.Claim{Address: everywhere, Port: uint16(o.NodePort), Protocol: p.Protocol})
		}
	}
	return list
}

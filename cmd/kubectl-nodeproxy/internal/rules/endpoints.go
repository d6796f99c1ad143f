package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

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
	// Cluster and Local say by traffic policy whether it is used; nil: no traffic has that
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

const notReady = "NotReady"

// explainAll reports for each endpoint of a Service whether it is used, and why not.
func explainAll(s *Service, svc *dataplane.Service, object *v1alpha1.ServiceProxyRules, node *v1alpha1.NodeProxyRules) {
	for i := range s.Ports {
		p, source := &s.Ports[i], &svc.Ports[i]
		for j := range object.Spec.Ports {
			if o := &object.Spec.Ports[j]; o.Name == p.Name && o.Protocol == p.Protocol && o.Port == int32(p.Port) {
				p.Endpoints = explain(p, source, o, s.Family, node)
				break
			}
		}
	}
}

func explain(p *Port, source *dataplane.Port, object *v1alpha1.ServicePort, f dataplane.Family, node *v1alpha1.NodeProxyRules) []Endpoint {
	var list []Endpoint
	known := map[netip.AddrPort]bool{}
	ready := slices.ContainsFunc(object.Endpoints, func(g v1alpha1.EndpointGroup) bool {
		return g.State == v1alpha1.EndpointReady && slices.ContainsFunc(g.Addresses, func(text string) bool {
			at, err := netip.ParseAddrPort(text)
			return err == nil && f.Of(at.Addr())
		})
	})
	for i := range object.Endpoints {
		g := &object.Endpoints[i]
		for _, text := range g.Addresses {
			at, err := netip.ParseAddrPort(text)
			if err != nil || !f.Of(at.Addr()) {
				continue
			}
			known[at] = true
			e := Endpoint{Address: at.String(), State: string(g.State), OnNode: slices.Contains(source.Members, at)}
			if p.UsesCluster {
				e.Cluster = inCluster(source, at, g, ready, node)
			}
			if p.UsesLocal {
				e.Local = inLocal(source, at, e.OnNode)
			}
			list = append(list, e)
		}
	}
	for _, at := range source.Members {
		if known[at] {
			continue
		}
		e := Endpoint{Address: at.String(), State: notReady, OnNode: true}
		if p.UsesCluster {
			e.Cluster = &Use{Message: "not ready"}
		}
		if p.UsesLocal {
			e.Local = &Use{Message: "not ready"}
		}
		list = append(list, e)
	}
	return list
}

func inCluster(source *dataplane.Port, at netip.AddrPort, g *v1alpha1.EndpointGroup, ready bool, node *v1alpha1.NodeProxyRules) *Use {
	switch {
	case slices.Contains(source.Cluster, at):
		return &Use{Used: true}
	case g.State == v1alpha1.EndpointTerminating && ready:
		return &Use{Message: "it terminates, and others are ready"}
	case len(g.Nodes) > 0 && !slices.Contains(g.Nodes, node.Name):
		return &Use{Message: "hinted for " + strings.Join(g.Nodes, ", ")}
	case len(g.Zones) > 0 && !slices.Contains(g.Zones, node.Spec.Node.Zone):
		return &Use{Message: fmt.Sprintf("hinted for zone %s, but the node is in %q", strings.Join(g.Zones, ", "), node.Spec.Node.Zone)}
	default:
		return &Use{Message: "it is unusable"}
	}
}

func inLocal(source *dataplane.Port, at netip.AddrPort, onNode bool) *Use {
	switch {
	case slices.Contains(source.Local, at):
		return &Use{Used: true}
	case !onNode:
		return &Use{Message: "it is on another node"}
	default:
		return &Use{Message: "it terminates, and others on this node are ready"}
	}
}

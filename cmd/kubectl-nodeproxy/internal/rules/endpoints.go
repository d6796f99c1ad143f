package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Endpoint is an endpoint of a port, and what a node makes of it.
type Endpoint struct {
	At string `json:"at"`
	// State is Ready, Terminating or NotReady: on this node, and of no use.
	State string `json:"state"`
	// OnNode: it is on this node.
	OnNode bool `json:"onNode"`
	// Cluster and Local say by traffic policy whether it is used: yes, or why not.
	// Empty: no traffic is under that policy.
	Cluster string `json:"cluster,omitempty"`
	Local   string `json:"local,omitempty"`
}

const (
	yes      = "yes"
	notReady = "NotReady"
)

// explainAll says of each endpoint of a Service whether it is used, and why not.
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
			e := Endpoint{At: at.String(), State: string(g.State), OnNode: slices.Contains(source.Members, at)}
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
		e := Endpoint{At: at.String(), State: notReady, OnNode: true}
		if p.UsesCluster {
			e.Cluster = "no: not ready"
		}
		if p.UsesLocal {
			e.Local = "no: not ready"
		}
		list = append(list, e)
	}
	return list
}

func inCluster(source *dataplane.Port, at netip.AddrPort, g *v1alpha1.EndpointGroup, ready bool, node *v1alpha1.NodeProxyRules) string {
	switch {
	case slices.Contains(source.Cluster, at):
		return yes
	case g.State == v1alpha1.EndpointTerminating && ready:
		return "no: it terminates, and others are ready"
	case len(g.Nodes) > 0 && !slices.Contains(g.Nodes, node.Name):
		return fmt.Sprintf("no: hinted for %s", strings.Join(g.Nodes, ", "))
	case len(g.Zones) > 0 && !slices.Contains(g.Zones, node.Spec.Node.Zone):
		return fmt.Sprintf("no: hinted for zone %s, and the node is in %q", strings.Join(g.Zones, ", "), node.Spec.Node.Zone)
	default:
		return "no: it cannot be used"
	}
}

func inLocal(source *dataplane.Port, at netip.AddrPort, onNode bool) string {
	switch {
	case slices.Contains(source.Local, at):
		return yes
	case !onNode:
		return "no: it is on another node"
	default:
		return "no: it terminates, and others on this node are ready"
	}
}

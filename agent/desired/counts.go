package desired

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// recount counts a family's Service as svc and no longer as former, either of which may be nil.
func (f *familyState) recount(name dataplane.ServiceName, former, svc *dataplane.Service) {
	f.add(former, -1)
	f.add(svc, +1)
	if svc != nil && svc.HealthCheckNodePort != 0 {
		f.checked[name] = svc
	} else {
		delete(f.checked, name)
	}
}

func (f *familyState) add(svc *dataplane.Service, delta int32) {
	if svc == nil {
		return
	}
	f.endpoints.add(svc, delta)
	f.noLocal.add(svc, int(delta))
	for i := range svc.Ports {
		if svc.Ports[i].NodePort != 0 {
			f.nodePorts += int(delta)
		}
	}
}

// endpointCount counts the Service ports that use an endpoint, so that distinct endpoints can
// be counted without reading all of them.
type endpointCount struct {
	uses  map[netip.AddrPort]uses
	local int // how many of them are on this node
}

type uses struct{ all, local int32 }

func (c *endpointCount) add(svc *dataplane.Service, delta int32) {
	for i := range svc.Ports {
		p := &svc.Ports[i]
		isLocal := among(p.LocalEndpoints)
		for _, e := range p.Cluster {
			c.count(e, delta, isLocal(e))
		}
		if len(p.Local) == 0 {
			continue
		}
		inCluster := among(p.Cluster)
		for _, e := range p.Local {
			if !inCluster(e) {
				c.count(e, delta, true)
			}
		}
	}
}

// among returns whether an endpoint is in a list; a few are found fastest one by one.
func among(list []netip.AddrPort) func(netip.AddrPort) bool {
	const few = 16
	if len(list) <= few {
		return func(e netip.AddrPort) bool { return slices.Contains(list, e) }
	}
	return sets.New(list...).Has
}

func (c *endpointCount) count(e netip.AddrPort, delta int32, local bool) {
	u := c.uses[e]
	before := u.local > 0
	u.all += delta
	if local {
		u.local += delta
	}
	if after := u.local > 0; after && !before {
		c.local++
	} else if before && !after {
		c.local--
	}
	if u.all == 0 {
		delete(c.uses, e)
		return
	}
	c.uses[e] = u
}

// noLocal counts Service ports whose traffic of one kind stays on the node, which has no
// endpoint for it.
type noLocal struct{ Internal, External int }

func (n *noLocal) add(svc *dataplane.Service, delta int) {
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if !p.Available || len(p.Local) > 0 {
			continue
		}
		if svc.InternalLocal {
			n.Internal += delta
		}
		if svc.ExternalLocal && svc.ExternallyAccessible(p) {
			n.External += delta
		}
	}
}

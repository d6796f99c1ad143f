package desired

import (
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// tally counts a family's Service as svc and no longer as former, either of which may be nil.
func (f *familyState) tally(name dataplane.ServiceName, former, svc *dataplane.Service) {
	f.add(former, -1)
	f.add(svc, +1)
	if svc != nil && svc.HealthCheckNodePort != 0 {
		f.checked[name] = svc
	} else {
		delete(f.checked, name)
	}
}

func (f *familyState) add(svc *dataplane.Service, sign int32) {
	if svc == nil {
		return
	}
	f.endpoints.add(svc, sign)
	f.noLocal.add(svc, int(sign))
	for i := range svc.Ports {
		if svc.Ports[i].NodePort != 0 {
			f.nodePorts += int(sign)
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

func (c *endpointCount) add(svc *dataplane.Service, sign int32) {
	for i := range svc.Ports {
		p := &svc.Ports[i]
		isLocal, inCluster := among(p.Members), among(p.Cluster)
		for _, e := range p.Cluster {
			c.count(e, sign, isLocal(e))
		}
		for _, e := range p.Local {
			if !inCluster(e) {
				c.count(e, sign, true)
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
	set := make(map[netip.AddrPort]struct{}, len(list))
	for _, e := range list {
		set[e] = struct{}{}
	}
	return func(e netip.AddrPort) bool {
		_, found := set[e]
		return found
	}
}

func (c *endpointCount) count(e netip.AddrPort, sign int32, local bool) {
	u := c.uses[e]
	before := u.local > 0
	u.all += sign
	if local {
		u.local += sign
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

func (n *noLocal) add(svc *dataplane.Service, sign int) {
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if !p.Available || len(p.Local) > 0 {
			continue
		}
		if svc.InternalLocal {
			n.Internal += sign
		}
		if svc.ExternalLocal && svc.ExternallyAccessible(p) {
			n.External += sign
		}
	}
}

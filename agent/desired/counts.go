package desired

import (
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// endpointCount counts the Service ports that use an endpoint, so that
// distinct endpoints can be counted without looking at all of them.
type endpointCount struct {
	uses  map[netip.AddrPort]uses
	local int // how many of them live on this node
}

type uses struct{ all, local int32 }

func (c *endpointCount) add(svc *dataplane.Service, sign int32) {
	if svc == nil {
		return
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		isMember, inCluster := among(p.Members), among(p.Cluster)
		for _, e := range p.Cluster {
			c.count(e, sign, isMember(e))
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

func countNodePorts(svc *dataplane.Service) int {
	n := 0
	if svc != nil {
		for i := range svc.Ports {
			if svc.Ports[i].NodePort != 0 {
				n++
			}
		}
	}
	return n
}

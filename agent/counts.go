package agent

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
		for _, e := range p.Cluster {
			c.count(e, sign, slices.Contains(p.Members, e))
		}
		for _, e := range p.Local {
			if !slices.Contains(p.Cluster, e) {
				c.count(e, sign, true)
			}
		}
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

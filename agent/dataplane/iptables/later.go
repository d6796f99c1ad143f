package iptables

import (
	"bytes"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// laterTexts plans the texts of a large Service's chains, one port at a time, once they are written.
// Those of all ports together take tens of megabytes.
type laterTexts struct {
	config *config
	svc    *dataplane.Service
	port   int               // of those that are known
	known  map[string]string // by the chain's name
}

// postpone has the chains of a large Service planned without texts, but for those that one call may
// not carry.
func (c *config) postpone(s *dataplane.Service, limits callLimits, written func(*chain) bool) servicePlan {
	endpoints := 0
	for i := range s.Ports {
		endpoints += len(s.Ports[i].Cluster) + len(s.Ports[i].Local)
	}
	if endpoints < limits.late {
		return c.planTexts(s, written)
	}
	out := c.planTexts(s, func(c *chain) bool { return c.rules >= limits.part && written(c) })
	later := &laterTexts{config: c, svc: s}
	for i := range out.chains {
		if c := &out.chains[i]; c.text == "" {
			c.later = later
		}
	}
	return out
}

func (l *laterTexts) of(c *chain) string {
	if l.known == nil || l.port != c.port {
		p := l.config.newPortPlan(l.svc, &l.svc.Ports[c.port])
		p.buffer, p.written = &bytes.Buffer{}, func(*chain) bool { return true }
		p.planChains()
		l.port, l.known = c.port, make(map[string]string, len(p.out.chains))
		for i := range p.out.chains {
			l.known[p.out.chains[i].name] = p.out.chains[i].text
		}
	}
	return l.known[c.name]
}

package nftables

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// contest decides which Service has a destination that several ask for: a node port and an address
// of the node. It remembers who has lost.
type contest struct {
	losers map[key]map[dataplane.ServiceName]struct{}
	lost   map[dataplane.ServiceName]map[key]dataplane.ServiceName // with the winner
}

func newContest() *contest {
	return &contest{map[key]map[dataplane.ServiceName]struct{}{}, map[dataplane.ServiceName]map[key]dataplane.ServiceName{}}
}

// forget drops what a Service has lost.
func (c *contest) forget(name dataplane.ServiceName) {
	for k := range c.lost[name] {
		if delete(c.losers[k], name); len(c.losers[k]) == 0 {
			delete(c.losers, k)
		}
	}
	delete(c.lost, name)
}

func (c *contest) lose(k key, loser, winner dataplane.ServiceName) {
	if c.losers[k] == nil {
		c.losers[k] = map[dataplane.ServiceName]struct{}{}
	}
	if c.lost[loser] == nil {
		c.lost[loser] = map[key]dataplane.ServiceName{}
	}
	c.losers[k][loser], c.lost[loser][k] = struct{}{}, winner
}

// reason states what a Service has lost.
func (c *contest) reason(name dataplane.ServiceName) string {
	first := slices.MinFunc(slices.Collect(maps.Keys(c.lost[name])), key.compare)
	text := fmt.Sprintf("Service %s has %s, protocol %s", c.lost[name][first], first.AddrPort, first.protocol)
	if more := len(c.lost[name]) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

// all plans all Services of a Ruleset, as if no Service had anything.
func (c *contest) all(config *config, r *dataplane.Ruleset) map[dataplane.ServiceName]*servicePlan {
	return c.plans(config, namesOf(r), func(name dataplane.ServiceName) *dataplane.Service { return r.Services[name] },
		func(key) dataplane.ServiceName { return dataplane.ServiceName{} }, func(dataplane.ServiceName) *servicePlan { return nil })
}

// plans plans some Services, and those that gain or lose a destination by that. Of returns a
// Service; nil: it has ended. Owner returns which Service has a destination now; the zero name:
// none. The plan of a Service that has ended is nil.
func (c *contest) plans(config *config, names []dataplane.ServiceName, of func(dataplane.ServiceName) *dataplane.Service,
	owner func(key) dataplane.ServiceName, former func(dataplane.ServiceName) *servicePlan) map[dataplane.ServiceName]*servicePlan {
	plans := map[dataplane.ServiceName]*servicePlan{}
	taken := map[key]dataplane.ServiceName{}
	has := func(k key) (dataplane.ServiceName, bool) {
		if name, found := taken[k]; found {
			return name, name != dataplane.ServiceName{}
		}
		name := owner(k)
		return name, name != dataplane.ServiceName{} && of(name) != nil
	}
	free := func(p *servicePlan, name dataplane.ServiceName) (freed []key) {
		if p == nil {
			return nil
		}
		for i := range p.destinations {
			k := p.destinations[i].key
			if now, _ := has(k); now == name {
				taken[k] = dataplane.ServiceName{}
				freed = append(freed, k)
			}
		}
		return freed
	}
	var queue []dataplane.ServiceName
	queued := map[dataplane.ServiceName]struct{}{}
	push := func(name dataplane.ServiceName) {
		if _, waits := queued[name]; !waits {
			queued[name] = struct{}{}
			queue = append(queue, name)
		}
	}
	for _, name := range names {
		push(name)
	}
	for ; len(queue) > 0; queue = queue[1:] {
		name := queue[0]
		delete(queued, name)
		previous, planned := plans[name]
		if !planned {
			previous = former(name)
		}
		freed := free(previous, name)
		c.forget(name)
		service := of(name)
		if service == nil {
			plans[name] = nil
		} else {
			plan := config.planService(service)
			plan.destinations = slices.DeleteFunc(plan.destinations, func(d destination) bool {
				other, found := has(d.key)
				if found && other != name {
					if service.ComparePrecedence(of(other)) > 0 {
						c.lose(d.key, name, other)
						return true
					}
					push(other)
				}
				taken[d.key] = name
				return false
			})
			plans[name] = &plan
		}
		if p := plans[name]; p != nil { // an owner that has ended is not asked
			for i := range p.destinations {
				freed = append(freed, p.destinations[i].key)
			}
		}
		for _, k := range freed {
			now := of(taken[k])
			for loser := range c.losers[k] {
				if s := of(loser); s != nil && (now == nil || s.ComparePrecedence(now) < 0) {
					push(loser)
				}
			}
		}
	}
	return plans
}

// compare orders by address, port and protocol.
func (k key) compare(o key) int {
	if c := k.AddrPort.Compare(o.AddrPort); c != 0 {
		return c
	}
	return slices.Compare([]byte(k.protocol), []byte(o.protocol))
}

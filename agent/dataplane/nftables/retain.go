package nftables

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// takeOut takes out of plans the Services that are rejected, and adds those that are too large.
func takeOut(plans map[dataplane.ServiceName]*servicePlan, rejected map[dataplane.ServiceName]engine.Rejection[servicePlan]) {
	for name, plan := range plans {
		if reason := plan.tooLarge(); reason != "" {
			rejected[name] = engine.Rejection[servicePlan]{Reason: reason, Proven: true}
		}
	}
	for name := range rejected {
		delete(plans, name)
	}
}

// retained are the Services of a state that a Ruleset does not allow to remove, and rejected ones; a nil
// state has none.
func (s *state) retained(r *dataplane.Ruleset, rejected map[dataplane.ServiceName]engine.Rejection[servicePlan]) map[dataplane.ServiceName]struct{} {
	if s == nil {
		return nil
	}
	out := keys(rejected)
	if !r.Prune {
		maps.Copy(out, s.unknown(r))
	}
	return out
}

// addRetained adds to plans what a state has of some Services without one, but for destinations that
// others have now.
func addRetained(plans map[dataplane.ServiceName]*servicePlan, names map[dataplane.ServiceName]struct{}, from *state) {
	missing := maps.Clone(names)
	maps.DeleteFunc(missing, func(name dataplane.ServiceName, _ struct{}) bool { return plans[name] != nil })
	if len(missing) == 0 {
		return
	}
	s := newState()
	for name, plan := range plans {
		for i := range plan.destinations {
			s.destinations[plan.destinations[i].key] = owned{name, &plan.destinations[i]}
		}
	}
	s.demote(missing, from)
	maps.Copy(plans, s.services)
}

// limit takes out of a comparison with plans what a Ruleset does not allow to change, and rejected
// Services, unless there is a plan of what to retain.
func (c *config) limit(l *listing, d *comparison, r *dataplane.Ruleset, plans map[dataplane.ServiceName]*servicePlan,
	rejected map[dataplane.ServiceName]engine.Rejection[servicePlan]) {
	retained := d.former.retained(r, rejected)
	maps.DeleteFunc(retained, func(name dataplane.ServiceName, _ struct{}) bool { return plans[name] != nil })
	c.retain(d, retained)
	d.ignoreUnconfirmed(r)
	c.preserve(l, d, engine.PreservedOf(r))
}

// preserve leaves destinations of some Services as they are, where the table has them.
func (c *config) preserve(l *listing, d *comparison, services map[dataplane.ServiceName]struct{}) {
	if len(services) == 0 {
		return
	}
	exists := func(e nft.Element) (owner dataplane.ServiceName, found bool) {
		k, err := c.parseKey(e.Key)
		if err != nil {
			return dataplane.ServiceName{}, false
		}
		return d.desired.destinations[k].service, l.elements[setServices].find(k.bytes()) != nil
	}
	for name := range services {
		change := d.services[name]
		if change == nil {
			continue
		}
		change.deleted = map[string][]nft.Element{}
		for set, elements := range change.added {
			change.added[set] = slices.DeleteFunc(elements, func(e nft.Element) bool { _, found := exists(e); return found })
		}
		if change.size() == 0 {
			delete(d.services, name)
		}
	}
	for set, elements := range d.stale.deleted {
		d.stale.deleted[set] = slices.DeleteFunc(elements, func(e nft.Element) bool {
			owner, _ := exists(e)
			_, preserved := services[owner]
			return preserved
		})
	}
}

// retain leaves what the table has of some Services.
func (c *config) retain(d *comparison, names map[dataplane.ServiceName]struct{}) {
	if len(names) == 0 {
		return
	}
	for name := range names {
		delete(d.services, name)
	}
	d.desired.demote(names, d.former)
	for set, elements := range d.stale.deleted {
		d.stale.deleted[set] = slices.DeleteFunc(elements, func(e nft.Element) bool {
			if counts := d.desired.addressCounts(set); counts != nil {
				a, _ := c.parseAddress(e.Key)
				return counts[a] > 0
			}
			k, err := c.parseKey(e.Key)
			if err != nil {
				return false
			}
			_, retained := names[d.desired.destinations[k].service]
			return retained
		})
	}
	for set, elements := range d.stale.added {
		d.stale.added[set] = slices.DeleteFunc(elements, func(e nft.Element) bool {
			a, _ := c.parseAddress(e.Key)
			return d.desired.addressCounts(set)[a] == 0
		})
	}
}

// drift compares a listing to what the last Apply has left in the table, by the same config: what
// differs is what other programs have changed since.
func (d *Dataplane) drift(c *config, l *listing, actual *state, r *dataplane.Ruleset) *comparison {
	left := make(map[dataplane.ServiceName]*servicePlan, len(actual.services))
	for name, plan := range actual.services {
		p := *plan
		p.destinations = slices.DeleteFunc(slices.Clone(plan.destinations), func(d destination) bool { return actual.destinations[d.key].service != name })
		left[name] = &p
	}
	out := c.compare(l, left)
	out.judge(l, d.owns, d.kernel.Port())
	out.ignoreUnconfirmed(r)
	c.preserve(l, out, engine.PreservedOf(r))
	return out
}

// ignoreUnconfirmed leaves addresses that may be those of Services which are not listed yet.
func (d *comparison) ignoreUnconfirmed(r *dataplane.Ruleset) {
	if !r.Prune {
		delete(d.stale.deleted, setClusterIPs)
		delete(d.stale.deleted, setHairpin)
	}
}

// addressCounts are the counts by which a set has addresses; nil: it has no such.
func (s *state) addressCounts(set string) map[netip.Addr]int {
	return map[string]map[netip.Addr]int{setClusterIPs: s.clusterIPs, setHairpin: s.hairpin}[set]
}

// unknown are the Services of a state that are neither desired nor have ended.
func (s *state) unknown(r *dataplane.Ruleset) map[dataplane.ServiceName]struct{} {
	out := map[dataplane.ServiceName]struct{}{}
	for _, o := range s.destinations {
		if _, dirty := r.Dirty[o.service]; !dirty && r.Services[o.service] == nil {
			out[o.service] = struct{}{}
		}
	}
	return out
}

func keys[V any](of map[dataplane.ServiceName]V) map[dataplane.ServiceName]struct{} {
	out := make(map[dataplane.ServiceName]struct{}, len(of))
	for name := range of {
		out[name] = struct{}{}
	}
	return out
}

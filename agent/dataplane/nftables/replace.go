package nftables

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// rebuild replaces a table whose sets or hooks are not as they should be, with plans and with what the
// table has of Services that are retained, rejected or preserved. It returns how the new table
// differs from an empty one, and how many Services were written.
func (o operations) rebuild(c *config, l *listing, r *dataplane.Ruleset, plans map[dataplane.ServiceName]*servicePlan,
	rejected map[dataplane.ServiceName]engine.Rejection[servicePlan], final bool) (*comparison, int, error) {
	former := c.readable(l)
	retained := former.retained(r, rejected)
	addRetained(plans, retained, former)
	for name := range engine.PreservedOf(r) {
		plans[name].preserve(former)
	}
	d := c.compare(&listing{}, plans)
	changed, err := o.tryReplacement(c, d, rejected, final)
	if err != nil {
		return nil, 0, err
	}
	if len(o.engine.Rejected) > 0 {
		again := keys(o.engine.Rejected)
		for name := range again {
			delete(plans, name)
		}
		// What the kernel rejects although it had it would make the whole table fail.
		maps.DeleteFunc(again, func(name dataplane.ServiceName, _ struct{}) bool { _, tried := retained[name]; return tried })
		addRetained(plans, again, former)
		d = c.compare(&listing{}, plans)
	}
	return d, changed, o.replaceTable(c, l.generation, d, final)
}

// readable is the state of a table that is to be replaced, without what cannot be used: sets of another
// description, and destinations that lack endpoints or a Service.
func (c *config) readable(l *listing) *state {
	for _, s := range c.sets() {
		if have := l.sets[s.Name]; !have.Is(s) {
			delete(l.elements, s.Name)
		}
	}
	out := c.state(l)
	maps.DeleteFunc(out.destinations, func(_ key, o owned) bool {
		endpoints := o.endpoints
		if o.chain.local {
			endpoints = o.local
		}
		return o.service == (dataplane.ServiceName{}) || o.chain.count > len(endpoints) || o.circuit.count > len(o.endpoints)
	})
	return out
}

// preserve leaves the destinations of a plan as a state has them.
func (p *servicePlan) preserve(former *state) {
	if p == nil {
		return // it is rejected
	}
	for i := range p.destinations {
		o := former.destinations[p.destinations[i].key]
		if o.destination == nil || o.service != p.name {
			continue
		}
		p.destinations[i] = *o.destination
		for _, e := range slices.Concat(o.endpoints, o.local) {
			if _, found := former.hairpin[e.Addr()]; found {
				p.hairpin = append(p.hairpin, e.Addr())
			}
		}
	}
	slices.SortFunc(p.hairpin, netip.Addr.Compare)
	p.hairpin = slices.Compact(p.hairpin)
}

// tryReplacement has the kernel check and discard small batches with the new table, which shows the
// Services that it rejects. It returns how many it does not.
func (o operations) tryReplacement(c *config, d *comparison, exempt map[dataplane.ServiceName]engine.Rejection[servicePlan], final bool) (int, error) {
	t, sets, hookless := c.table(), c.setNames(d.desired.numbered), *d
	hookless.chains = slices.DeleteFunc(slices.Clone(d.chains), func(f fixedChain) bool { return f.hook != nil })
	return o.writeServices(d, exempt, final, func(changes []*change) error {
		var b nft.Batch
		b.DeleteTable(t)
		hookless.layout(&b, t, o.owns)
		appendChanges(&b, t, sets, changes...)
		c.addFailure(&b)
		return o.discard(&b)
	})
}

// replaceTable replaces the table in one batch, so that packets meet either; only Services beyond
// replacedElements follow.
func (o operations) replaceTable(c *config, generation uint32, d *comparison, final bool) error {
	t, sets := c.table(), c.setNames(d.desired.numbered)
	var b nft.Batch
	b.DeleteTable(t)
	d.layout(&b, t, o.owns)
	if final { // programs that never stop changing tables must not prevent it
		generation = 0
	}
	for _, changes := range d.replacement() {
		appendChanges(&b, t, sets, changes...)
		if err := o.kernel.Commit(&b, generation); err != nil {
			return fmt.Errorf("replace table %s, which another program or an earlier version has made: %w", TableName, err)
		}
		b.Reset()
		generation = 0
	}
	return nil
}

// replacement is what the batches add that fill a new table. The guard is in the last one: it rejects
// what is sent to a cluster IP whose destinations are still missing.
func (d *comparison) replacement() [][]*change {
	others, guard := newChange(), newChange()
	maps.Copy(others.added, d.stale.added)
	delete(others.added, setClusterIPs)
	guard.added[setClusterIPs] = d.stale.added[setClusterIPs]
	out := [][]*change{{others}}
	size := 0
	for _, name := range slices.SortedFunc(maps.Keys(d.services), dataplane.ServiceName.Compare) {
		n := d.desired.services[name].size()
		if size+n > replacedElements && size > 0 {
			out, size = append(out, nil), 0
		}
		size += n
		out[len(out)-1] = append(out[len(out)-1], d.services[name])
	}
	out[len(out)-1] = append(out[len(out)-1], guard)
	return out
}

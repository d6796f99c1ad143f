package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
)

// compare reads the table and compares it to the plans of all Services. While the kernel makes a
// set's hash table larger, a listing may lack elements, so some that are missing are looked up.
func (d *Dataplane) compare(c *config, plans map[dataplane.ServiceName]*servicePlan) (*listing, *comparison, error) {
	for try := 0; ; try++ {
		l, err := d.list(c)
		if errors.Is(err, unix.ENOENT) && try < listTries {
			continue // a set has gone since it was found
		}
		if err != nil {
			return nil, nil, err
		}
		out := c.compare(l, plans)
		out.judge(l, d.owns, d.kernel.Port())
		incomplete, err := d.incomplete(c, l, out)
		if err != nil {
			return nil, nil, err
		}
		if !incomplete || try >= listTries {
			return l, out, nil
		}
	}
}

// list reads the table, unless the last comparison has and nothing has changed since.
func (d *Dataplane) list(c *config) (*listing, error) {
	l := d.listed
	d.listed = nil
	if l != nil {
		if now, err := d.kernel.Generation(); err == nil && now == l.generation {
			return l, nil
		}
	}
	period := d.journal.now()
	l, err := c.list(d.kernel)
	if err == nil {
		l.period = period
	}
	return l, err
}

// incomplete reports whether the table has some of the elements that a listing lacks.
func (d *Dataplane) incomplete(c *config, l *listing, of *comparison) (bool, error) {
	missing := map[string][][]byte{}
	add := func(change *change) {
		for set, elements := range change.added {
			if l.elements[set].len() == 0 {
				continue
			}
			for i := range elements {
				if len(missing[set]) < samples && l.elements[set].find(elements[i].Key) == nil {
					missing[set] = append(missing[set], elements[i].Key)
				}
			}
		}
	}
	add(of.stale)
	for _, change := range of.services {
		add(change)
	}
	for set, keys := range missing {
		for _, k := range keys {
			e, err := d.kernel.Find(c.table(), set, k)
			if err != nil {
				return false, fmt.Errorf("look up an element of set %s: %w", set, err)
			}
			if e != nil {
				return true, nil
			}
		}
	}
	return false, nil
}

// Full implements engine.Operations. It begins again if another program changes the table meanwhile.
func (o operations) Full(ctx context.Context, r *dataplane.Ruleset, asked bool) (engine.FullPass, error) {
	c, err := o.configFor(&r.Node)
	if err != nil {
		return engine.FullPass{}, err
	}
	o.services = r.Services
	o.noteAddresses(c)
	was := o.actual
	o.actual = nil
	var pass engine.FullPass
	for try := range fullTries {
		if asked || !reflect.DeepEqual(c, o.config) { // no change by another program is the reason
			was = nil
		}
		pass, err = o.full(c, r, was, try == fullTries-1)
		if !outdated(err) || ctx.Err() != nil {
			break
		}
	}
	return pass, err
}

// full compares and writes. Was is what the table had after the last Apply; nil: it does not matter.
// Final: a Service for which the table is not as listed counts as rejected.
func (o operations) full(c *config, r *dataplane.Ruleset, was *state, final bool) (engine.FullPass, error) {
	o.contest = newContest()
	plans, exempt := o.contest.all(c, r), o.engine.Resting(r)
	takeOut(plans, exempt)
	addRetained(plans, o.last.retained(r, exempt), o.last)
	l, difference, err := o.compare(c, plans)
	if err != nil {
		return engine.FullPass{}, err
	}
	var out engine.FullPass
	if was != nil && !difference.equal() {
		out.Repaired = dataplane.DifferenceOf(c.findings(o.drift(c, l, was, r)), dataplane.VerifyOptions{})
	}
	o.engine.Preserved = engine.PreservedOf(r)
	if difference.rebuild {
		difference, out.Changed, err = o.rebuild(c, l, r, plans, exempt, final)
	} else {
		c.limit(l, difference, r, plans, exempt)
		out.Changed, err = o.writeDifference(c, l, difference, exempt, final)
	}
	if err == nil {
		err = o.forgetOthers(c, difference.desired)
	}
	if err != nil {
		return engine.FullPass{}, err
	}
	// One that is retained without being desired would otherwise be tried again, as one that has ended.
	maps.DeleteFunc(o.engine.Rejected, func(name dataplane.ServiceName, _ engine.Rejection[servicePlan]) bool { return r.Services[name] == nil })
	maps.Copy(o.engine.Rejected, exempt)
	difference.desired.countAll(c)
	o.actual, o.last, o.config, o.next = difference.desired, difference.desired, c, nil
	o.listed, o.suspicion = nil, nil
	o.journal.known(l.period, l.generation)
	return out, nil
}

// outdated reports whether an error shows that the table is not as it was listed.
func outdated(err error) bool {
	return errors.Is(err, nft.ErrChanged) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY)
}

// writeDifference writes what a comparison has found, and returns how many Services it has changed.
// Base chains of a new table come last, so that no packet meets a part of it.
func (o operations) writeDifference(c *config, l *listing, d *comparison, exempt map[dataplane.ServiceName]engine.Rejection[servicePlan], final bool) (int, error) {
	t := c.table()
	first, hooks := *d, *d
	first.chains, hooks.sets, hooks.chains = nil, nil, nil
	for _, chain := range d.chains {
		if _, exists := l.chains[chain.name]; chain.hook != nil && !exists {
			hooks.chains = append(hooks.chains, chain)
		} else {
			first.chains = append(first.chains, chain)
		}
	}
	if len(first.sets)+len(first.chains) > 0 || !l.exists || d.adopt {
		var b nft.Batch
		first.layout(&b, t, o.owns)
		if err := o.kernel.Commit(&b, 0); err != nil {
			return 0, fmt.Errorf("write the layout of table %s: %w", TableName, err)
		}
	}
	sets := c.setNames(d.desired.numbered)
	changed, err := o.writeServices(d, exempt, final, func(changes []*change) error {
		var b nft.Batch
		appendChanges(&b, t, sets, changes...)
		return o.kernel.Commit(&b, 0)
	})
	if err != nil {
		return 0, err
	}
	c.retain(d, keys(o.engine.Rejected))
	var b nft.Batch
	(&change{added: d.stale.added}).appendTo(&b, t, sets)
	if len(hooks.chains) > 0 {
		hooks.layout(&b, t, o.owns)
	}
	if err := o.kernel.Commit(&b, 0); err != nil {
		return 0, fmt.Errorf("write table %s: %w", TableName, err)
	}
	if err := o.removeStale(t, d, sets); err != nil {
		return 0, fmt.Errorf("remove what is not desired from table %s: %w", TableName, err)
	}
	return changed, nil
}

// writeServices writes by batches what a comparison has found of Services. It fails if the kernel
// rejects all Services, those that are exempt before.
func (o operations) writeServices(d *comparison, exempt map[dataplane.ServiceName]engine.Rejection[servicePlan], final bool, write func([]*change) error) (int, error) {
	plans := map[dataplane.ServiceName]*servicePlan{}
	for name := range d.services {
		plans[name] = d.desired.services[name]
	}
	changed, err := o.write(plans, map[dataplane.ServiceName]engine.Rejection[servicePlan]{}, final, func(batch []dataplane.ServiceName) error {
		changes := make([]*change, len(batch))
		for i, name := range batch {
			changes[i] = d.services[name]
		}
		return write(changes)
	})
	if err != nil {
		return 0, err
	}
	rejected := maps.Clone(exempt)
	maps.Copy(rejected, o.engine.Rejected)
	return changed, engine.NoneTaken(len(o.services), rejected)
}

// removeStale removes what a comparison has found besides what is desired.
func (o operations) removeStale(t nft.Table, d *comparison, sets []string) error {
	guard := func(set string) bool { return set == setClusterIPs }
	// The guard first: it rejects what is sent to an address of which another set lacks the destination.
	for _, set := range append([]string{setClusterIPs}, slices.DeleteFunc(slices.Clone(sets), guard)...) {
		for part := range slices.Chunk(d.stale.deleted[set], o.batch) {
			var b nft.Batch
			for i := range part {
				b.DeleteElement(t, set, &part[i])
			}
			if err := o.kernel.Commit(&b, 0); err != nil {
				return err
			}
		}
	}
	var b nft.Batch
	d.removeUnknownSets(&b, t)
	if err := o.kernel.Commit(&b, 0); err != nil {
		return err
	}
	b.Reset()
	d.removeUnknownChains(&b, t)
	return o.kernel.Commit(&b, 0)
}

package nftables

import (
	"errors"
	"fmt"
	"iter"
	"maps"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// finding is how the table differs from what the last Apply has left in it, at a generation.
type finding struct {
	comparison
	generation uint32
	period     int // of the journal
	counts     dataplane.Counts
	missing    bool // there is no table
}

// findSuspected compares what other programs have changed by the journal, and plans nothing: desired is
// what the last Apply has left. It returns nil if that takes a comparison of everything.
func (d *Dataplane) findSuspected(c *config, r *dataplane.Ruleset) (*finding, error) {
	if !r.Prune || len(r.Preserve) > 0 || !d.engine.Settled(r) {
		return nil, nil //nolint:nilnil // see above
	}
	f := &finding{period: d.journal.now(), counts: (&listing{}).counts()}
	f.desired, f.services, f.stale = d.actual, map[dataplane.ServiceName]*change{}, newChange()
	var err error
	if f.generation, err = d.kernel.Generation(); err != nil {
		return nil, fmt.Errorf("read the generation of nf_tables: %w", err)
	}
	changes, known := d.journal.changes(f.generation)
	if !known {
		return nil, nil //nolint:nilnil // see above
	}
	var layout *listing
	if changes.Rules || changes.Sets {
		layout, err = c.listLayout(d.kernel)
		if errors.Is(err, nft.ErrInterrupted) {
			return nil, nil //nolint:nilnil // see above
		}
		if err != nil {
			return nil, err
		}
		c.compareLayout(&f.comparison, layout)
		f.judge(layout, d.owns, d.kernel.Port())
		f.missing = !layout.exists
	}
	f.desired.countChains(c)
	elements := f.desired.countedElements(c)
	switch {
	case f.missing:
		return f, nil
	case changes.Sets || f.rebuild || f.adopt || len(f.sets)+len(f.unknownSets) > 0:
		return nil, nil //nolint:nilnil // see above
	}
	for _, id := range changes.Elements {
		if _, found := elements[id.Set]; !found && id.Set != setAffinity {
			return nil, nil //nolint:nilnil // see above
		}
	}
	if err := d.findElements(c, f, changes.Elements); err != nil {
		return nil, err
	}
	for _, change := range f.changes() {
		for set := range elements {
			elements[set] += len(change.deleted[set]) - len(change.added[set])
		}
	}
	if f.counts = countsOf(f.desired.tally.fixed+f.desired.tally.chains, f.desired.tally.rules, elements); layout != nil {
		f.counts = layout.countsWith(elements)
	}
	return f, nil
}

// changes are those of all elements.
func (f *finding) changes() []*change {
	out := []*change{f.stale}
	for _, of := range f.services {
		out = append(out, of)
	}
	return out
}

// findElements compares elements.
func (d *Dataplane) findElements(c *config, f *finding, ids []nft.ElementID) error {
	suspects := make(map[nft.ElementID]struct{}, len(ids))
	for _, id := range ids {
		if id.Set != setAffinity {
			suspects[id] = struct{}{}
		}
	}
	desired := f.desired.elements(c, suspects)
	for id := range suspects {
		have, err := d.kernel.Find(c.table(), id.Set, []byte(id.Key))
		if err != nil {
			return fmt.Errorf("look up an element of set %s: %w", id.Set, err)
		}
		want, found := desired[id]
		switch {
		case !found && have == nil, found && have != nil && isElement(have, &want.Element):
		case !found:
			f.stale.replace(id.Set, have, nil)
		case want.of == (dataplane.ServiceName{}):
			f.stale.replace(id.Set, have, &want.Element)
		default:
			if f.services[want.of] == nil {
				f.services[want.of] = newChange()
			}
			f.services[want.of].replace(id.Set, have, &want.Element)
		}
	}
	return nil
}

// ownedElement is an element with the Service that it belongs to; none if Services share it.
type ownedElement struct {
	nft.Element
	of dataplane.ServiceName
}

// elements returns those of a state that have such identities.
func (s *state) elements(c *config, ids map[nft.ElementID]struct{}) map[nft.ElementID]ownedElement {
	out := map[nft.ElementID]ownedElement{}
	add := func(of dataplane.ServiceName, set string, elements ...nft.Element) {
		for i := range elements {
			id := nft.ElementID{Set: set, Key: string(elements[i].Key)}
			if _, found := ids[id]; found {
				out[id] = ownedElement{elements[i], of}
			}
		}
	}
	known := map[key]struct{}{}
	all := newChange()
	for id := range ids {
		if counts := s.addressCounts(id.Set); counts != nil {
			if a, ok := c.parseAddress([]byte(id.Key)); ok && counts[a] > 0 {
				add(dataplane.ServiceName{}, id.Set, nft.Element{Key: addressKey(id.Set, a)})
			}
			continue
		}
		k, err := c.parseKey([]byte(id.Key))
		if _, found := known[k]; err != nil || found {
			continue
		}
		known[k] = struct{}{}
		if o := s.destinations[k]; o.destination != nil {
			all.reset()
			all.replaceDestination(o.service, o.service, nil, o.destination)
			for set, elements := range all.added {
				add(o.service, set, elements...)
			}
		}
	}
	return out
}

// suspected converts a finding, and retains it for the repair if anything differs.
func (d *Dataplane) suspected(c *config, f *finding) dataplane.Difference {
	found := c.findings(&f.comparison)
	if f.missing {
		found = []dataplane.Finding{{Text: "missing table " + TableName}}
	}
	out := dataplane.DifferenceOf(found, dataplane.VerifyOptions{})
	if out.Counts = f.counts; out.Count > 0 {
		out.Drifted, d.found = true, f
		return out
	}
	out.Unread = true
	d.clean = f.generation
	d.journal.known(f.period, f.generation)
	return out
}

// repair writes what the last Verify has found by the journal, and what has been changed since. It
// returns how many Services it has written, and whether that is all.
func (o operations) repair(r *dataplane.Ruleset) (changed int, done bool) {
	f := o.found
	o.found = nil
	for range fullTries {
		if f == nil || f.desired != o.actual || !o.engine.Settled(r) {
			break
		}
		changed, err := o.writeFinding(f)
		if err == nil {
			o.journal.known(f.period, f.generation)
			return changed, true
		}
		if !errors.Is(err, nft.ErrChanged) {
			break
		}
		if f, err = o.findSuspected(o.config, r); err != nil {
			break
		}
	}
	return 0, false // a full pass follows, which names what is wrong
}

// writeFinding writes what a comparison has found, in one batch, and returns how many Services that
// concerns.
func (o operations) writeFinding(f *finding) (int, error) {
	t, sets := o.config.table(), o.config.setNames(o.actual.numbered)
	var b nft.Batch
	if len(f.sets)+len(f.chains) > 0 {
		f.layout(&b, t, o.owns)
	}
	changed := len(f.services)
	if f.missing {
		changed = len(o.actual.services)
		for part := range o.actual.parts() {
			part.appendTo(&b, t, sets)
		}
	}
	appendChanges(&b, t, sets, f.changes()...)
	f.removeUnknown(&b, t)
	return changed, o.kernel.Commit(&b, f.generation)
}

// partDestinations is how many destinations a part of a state has.
const partDestinations = 256

// parts yields what fills an empty table; each part is valid until the next.
func (s *state) parts() iter.Seq[*change] {
	return func(yield func(*change) bool) {
		part, n := newChange(), 0
		for _, o := range s.destinations {
			part.replaceDestination(o.service, o.service, nil, o.destination)
			if n++; n%partDestinations > 0 {
				continue
			}
			if !yield(part) {
				return
			}
			part.reset()
		}
		maps.Copy(part.added, s.counted())
		yield(part)
	}
}

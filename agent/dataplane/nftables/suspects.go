package nftables

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
)

// suspicion is how the table differs, at a generation, from what the last Apply has left in it.
type suspicion struct {
	comparison
	generation uint32
	period     int            // of the journal
	elements   map[string]int // how many each set should have
	layout     *listing       // nil: as it should be
	difference dataplane.Difference
}

// errUnsure is returned if only a comparison of everything shows how the table differs.
var errUnsure = errors.New("only a comparison of everything shows what has changed")

// missing reports whether there is no table.
func (s *suspicion) missing() bool { return s.layout != nil && !s.layout.exists }

// suspect compares what other programs have changed by the journal, and plans nothing: desired is what
// the last Apply has left. The error wraps errUnsure if that is not enough.
func (d *Dataplane) suspect(c *config, r *dataplane.Ruleset) (*suspicion, error) {
	if !r.Prune || len(r.Preserve)+len(d.engine.Preserved) > 0 || !d.engine.Settled(r) {
		return nil, errUnsure
	}
	s := &suspicion{period: d.journal.now()}
	var err error
	if s.generation, err = d.kernel.Generation(); err != nil {
		return nil, fmt.Errorf("read the generation of nf_tables: %w", err)
	}
	changes, known := d.journal.changes(s.generation)
	if !known {
		return nil, errUnsure
	}
	s.desired, s.services, s.stale = d.actual, map[dataplane.ServiceName]*change{}, newChange()
	s.elements = s.desired.countedElements(c)
	if changes.Rules || changes.Sets {
		if err := d.suspectLayout(c, s); err != nil {
			return nil, err
		}
	}
	switch {
	case s.missing() && s.size() > replacedElements, !s.missing() && changes.Sets:
		return nil, errUnsure
	case !s.missing():
		for _, id := range changes.Elements {
			if _, found := s.elements[id.Set]; !found && id.Set != setAffinity || id.Key == "" { // or it stands for all keys
				return nil, errUnsure
			}
		}
		for _, set := range changes.Whole {
			if _, found := s.elements[set]; !found {
				return nil, errUnsure
			}
		}
		if err := d.suspectElements(c, s, changes.Elements); err != nil {
			return nil, err
		}
		if err := d.suspectSets(c, s, changes.Whole); err != nil {
			return nil, err
		}
	}
	s.describe(c)
	return s, nil
}

// size is how many elements the table should have.
func (s *suspicion) size() (n int) {
	for _, of := range s.elements {
		n += of
	}
	return n
}

// suspectLayout compares chains and sets. Missing ones of a table are left to a full pass, which first
// makes them, then the elements that lead there.
func (d *Dataplane) suspectLayout(c *config, s *suspicion) (err error) {
	if s.layout, err = c.listLayout(d.kernel); err != nil {
		return err
	}
	c.compareLayout(&s.comparison, s.layout)
	s.judge(s.layout, d.owns, d.kernel.Port())
	if s.missing() {
		return nil
	}
	if s.rebuild || s.adopt || len(s.sets)+len(s.unknownSets) > 0 {
		return errUnsure
	}
	for _, chain := range s.chains {
		if _, found := s.layout.chains[chain.name]; !found {
			return errUnsure
		}
	}
	return nil
}

// suspectElements compares elements.
func (d *Dataplane) suspectElements(c *config, s *suspicion, ids []nft.ElementID) error {
	suspects := make(map[nft.ElementID]struct{}, len(ids))
	for _, id := range ids {
		if id.Set != setAffinity {
			suspects[id] = struct{}{}
		}
	}
	desired, err := s.desired.elements(c, suspects)
	if err != nil {
		return err
	}
	for id := range suspects {
		have, err := d.kernel.Find(c.table(), id.Set, []byte(id.Key))
		if err != nil {
			return fmt.Errorf("look up an element of set %s: %w", id.Set, err)
		}
		if want, found := desired[id]; found {
			s.compareElement(id.Set, have, &want)
		} else if have != nil {
			s.stale.replace(id.Set, have, nil)
		}
	}
	return nil
}

// compareElement compares an element of a set, nil for none, to the desired one.
func (s *suspicion) compareElement(set string, have *nft.Element, want *ownedElement) {
	switch {
	case have != nil && isElement(have, &want.Element):
	case want.of == (dataplane.ServiceName{}):
		s.stale.replace(set, have, &want.Element)
	default:
		if s.services[want.of] == nil {
			s.services[want.of] = newChange()
		}
		s.services[want.of].replace(set, have, &want.Element)
	}
}

// suspectSets compares all elements of sets, which it lists: another program has flushed them, for example.
func (d *Dataplane) suspectSets(c *config, s *suspicion, sets []string) error {
	l := &listing{elements: map[string]*elements{}}
	stale := map[string]map[string]*nft.Element{}
	size := 0
	for _, set := range sets {
		if set == setAffinity {
			continue
		}
		if size += 2 * s.elements[set]; size > replacedElements { // as many listed as desired
			return errUnsure
		}
		err := c.listSet(d.kernel, l, set)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, nft.ErrInterrupted) || l.elements[set].len() > replacedElements {
			return errUnsure
		}
		if err != nil {
			return err
		}
		stale[set] = make(map[string]*nft.Element, l.elements[set].len())
		for e := range l.elements[set].all() {
			stale[set][string(e.Key)] = e
		}
	}
	if len(stale) == 0 {
		return nil
	}
	compare := func(of dataplane.ServiceName, desired map[string][]nft.Element) {
		for set := range stale {
			for i := range desired[set] {
				e := &desired[set][i]
				delete(stale[set], string(e.Key))
				s.compareElement(set, l.elements[set].find(e.Key), &ownedElement{*e, of})
			}
		}
	}
	all := newChange()
	for _, o := range s.desired.destinations {
		all.reset()
		all.replaceDestination(o.service, o.service, nil, o.destination)
		compare(o.service, all.added)
	}
	compare(dataplane.ServiceName{}, s.desired.counted())
	for set, elements := range stale {
		for _, e := range elements {
			s.stale.replace(set, e, nil)
		}
	}
	incomplete, err := d.incomplete(c, l, &s.comparison)
	if err == nil && incomplete {
		err = errUnsure
	}
	return err
}

// maxSuspected is how many elements of destinations are planned to compare some of them.
const maxSuspected = 20_000

// ownedElement is an element with the Service that it belongs to; none if Services share it.
type ownedElement struct {
	nft.Element
	of dataplane.ServiceName
}

// elements returns those of a state that have such identities. The error wraps errUnsure if that costs more
// than a comparison of everything.
func (s *state) elements(c *config, ids map[nft.ElementID]struct{}) (map[nft.ElementID]ownedElement, error) {
	out := map[nft.ElementID]ownedElement{}
	add := func(of dataplane.ServiceName, set string, elements ...nft.Element) {
		for i := range elements {
			id := nft.ElementID{Set: set, Key: string(elements[i].Key)}
			if _, found := ids[id]; found {
				out[id] = ownedElement{elements[i], of}
			}
		}
	}
	known, size := map[key]struct{}{}, 0
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
		o := s.destinations[k]
		if o.destination == nil {
			continue
		}
		if size += o.size(); size > maxSuspected {
			return nil, errUnsure
		}
		all.reset()
		all.replaceDestination(o.service, o.service, nil, o.destination)
		for set, elements := range all.added {
			add(o.service, set, elements...)
		}
	}
	return out, nil
}

// changes are those of elements.
func (s *suspicion) changes() []*change {
	out := []*change{s.stale}
	for _, of := range s.services {
		out = append(out, of)
	}
	return out
}

// describe sets the difference.
func (s *suspicion) describe(c *config) {
	found := c.findings(&s.comparison)
	if s.missing() {
		found = []dataplane.Finding{{Text: "missing table " + TableName}}
	}
	s.difference = dataplane.DifferenceOf(found, dataplane.VerifyOptions{})
	s.difference.Drifted, s.difference.Unread = len(found) > 0, true
	elements := map[string]int{}
	if !s.missing() {
		maps.Copy(elements, s.elements)
	}
	for _, change := range s.changes() {
		for set := range elements {
			elements[set] += len(change.deleted[set]) - len(change.added[set])
		}
	}
	s.desired.countChains(c)
	tally := &s.desired.tally
	if s.difference.Counts = countsOf(tally.fixed+tally.chains, tally.rules, elements); s.layout != nil {
		s.difference.Counts = s.layout.countsWith(elements)
	}
}

// verifySuspects is Verify for what other programs are known to have changed. It retains what it finds
// for the repair.
func (d *Dataplane) verifySuspects(c *config, r *dataplane.Ruleset) (dataplane.Difference, error) {
	s, err := d.suspect(c, r)
	if err != nil {
		return dataplane.Difference{}, err
	}
	if d.listed = nil; s.difference.Count > 0 {
		d.suspicion = s
		return s.difference, nil
	}
	d.clean = s.generation
	d.journal.known(s.period, s.generation)
	return s.difference, nil
}

// Repair is what engine.Engine.Repair describes. It also writes what other programs have changed since the
// comparison.
func (o operations) Repair(ctx context.Context, r *dataplane.Ruleset) (pass engine.FullPass, done bool) {
	s := o.suspicion
	o.suspicion = nil
	if c, err := o.configFor(&r.Node); err != nil || s == nil || !reflect.DeepEqual(c, o.config) {
		return pass, false
	}
	pass.Repaired = s.difference
	for range fullTries {
		// What it has found holds for that generation only. A full pass names what is wrong.
		changed, err := o.writeSuspects(s)
		switch {
		case err == nil:
			o.journal.known(s.period, s.generation)
			pass.Changed = changed
			return pass, o.forgetOthers(o.config, o.actual) == nil
		case !errors.Is(err, nft.ErrChanged) || ctx.Err() != nil:
			return pass, false
		}
		if s, err = o.suspect(o.config, r); err != nil {
			return pass, false
		}
	}
	return pass, false
}

// writeSuspects writes what differs, in one batch, and returns how many Services that concerns.
func (o operations) writeSuspects(s *suspicion) (int, error) {
	t, sets := o.config.table(), o.config.setNames(o.actual.numbered)
	var b nft.Batch
	if len(s.sets)+len(s.chains) > 0 {
		s.comparison.layout(&b, t, o.owns)
	}
	changed := len(s.services)
	if s.missing() {
		changed = len(o.actual.services)
		for part := range o.actual.parts() {
			part.appendTo(&b, t, sets)
		}
	}
	appendChanges(&b, t, sets, s.changes()...)
	s.removeUnknownChains(&b, t)
	return changed, o.kernel.Commit(&b, s.generation)
}

// parts yields what fills an empty table; each part is valid until the next.
func (s *state) parts() iter.Seq[*change] {
	return func(yield func(*change) bool) {
		part, size := newChange(), 0
		for _, o := range s.destinations {
			part.replaceDestination(o.service, o.service, nil, o.destination)
			if size += o.size(); size < partElements {
				continue
			}
			if !yield(part) {
				return
			}
			part.reset()
			size = 0
		}
		maps.Copy(part.added, s.counted())
		yield(part)
	}
}

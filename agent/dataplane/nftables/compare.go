package nftables

import (
	"bytes"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// comparison is how a listing differs from the desired state.
type comparison struct {
	// former is the state of the listing, desired that after everything is written.
	former, desired *state
	// rebuild: a set has another description, which takes a new table. Adopt: the table has no
	// owner, and is to have one.
	rebuild, adopt bool
	// sets are those that are missing, chains those that are missing or have other rules.
	sets   []*nft.Set
	chains []fixedChain
	// unknownSets and unknownChains are what other programs have added to the table.
	unknownSets, unknownChains []string
	// services are the changes of Services that differ.
	services map[dataplane.ServiceName]*change
	// stale are elements that belong to no desired Service.
	stale *change
}

// equal reports whether nothing differs.
func (d *comparison) equal() bool {
	return !d.rebuild && !d.adopt && len(d.sets)+len(d.chains)+len(d.unknownSets)+len(d.unknownChains)+len(d.services)+d.stale.size() == 0
}

func (c *change) size() (n int) {
	for _, of := range []map[string][]nft.Element{c.deleted, c.added} {
		for _, elements := range of {
			n += len(elements)
		}
	}
	return n
}

// judge compares who may change the table: owns if it is to be the socket of that port alone.
func (d *comparison) judge(l *listing, owns bool, port uint32) {
	switch {
	case l.ownership.Dormant:
		d.rebuild = true
	case !owns || !l.exists:
	case !l.ownership.Persists && l.ownership.Port == 0: // which the kernel never changes
		d.rebuild = true
	default:
		d.adopt = l.ownership.Port != port
	}
}

// compare compares a listing to the plans of all Services. Endpoints of the plans are put in the
// order of the listing.
func (c *config) compare(l *listing, plans map[dataplane.ServiceName]*servicePlan) *comparison {
	former, desired := c.state(l), newState()
	out := &comparison{former: former, desired: desired, services: map[dataplane.ServiceName]*change{}, stale: newChange()}
	desired.numbered = former.numbered // sets of earlier Services stay: rules use them
	for of := range former.chains {    // those that no Service needs now stay for the next one
		c.reach(desired.chains, of)
	}
	used := map[string]int{} // elements of the listing, by set
	all := newChange()
	for name, plan := range plans {
		var difference *change
		for i := range plan.destinations {
			d := &plan.destinations[i]
			o := former.destinations[d.key]
			if o.destination != nil {
				d.endpoints, d.local = arrange(o.endpoints, d.endpoints), arrange(o.local, d.local)
			}
			desired.destinations[d.key] = owned{name, d}
			c.reach(desired.chains, d.chain)
			c.reach(desired.chains, d.circuit)
			d.addNumbered(desired.numbered)
			if o.destination != nil && d.isListed(l, name, o.destination) {
				d.countElements(used)
				continue
			}
			all.reset()
			all.replaceDestination(name, name, nil, d)
			for set, elements := range all.added {
				difference = difference.compare(l, set, elements, used)
			}
		}
		desired.services[name] = plan
		desired.count(plan, 1)
		if difference != nil {
			out.services[name] = difference
		}
	}
	for set, elements := range desired.counted() {
		if d := out.stale.compare(l, set, elements, used); d != nil {
			out.stale = d
		}
	}
	c.compareLayout(out, l)
	out.findStale(l, used)
	return out
}

// findStale adds the elements of a listing that are not desired. Used is how many are, by set.
func (d *comparison) findStale(l *listing, used map[string]int) {
	var stale []string
	for set, elements := range l.elements {
		if used[set] < elements.len() && !slices.Contains(d.unknownSets, set) {
			stale = append(stale, set)
		}
	}
	if len(stale) == 0 {
		return
	}
	desired := map[string]map[string]struct{}{}
	for _, set := range stale {
		desired[set] = make(map[string]struct{}, l.elements[set].len())
	}
	for part := range d.desired.parts() {
		for set, keys := range desired {
			for i := range part.added[set] {
				keys[string(part.added[set][i].Key)] = struct{}{}
			}
		}
	}
	for _, set := range stale {
		for e := range l.elements[set].all() {
			if _, found := desired[set][string(e.Key)]; !found {
				d.stale.replace(set, e, nil)
			}
		}
	}
}

// isListed reports whether a listing has all elements of a destination of a Service, given what the
// listing has of it.
func (d *destination) isListed(l *listing, name dataplane.ServiceName, listed *destination) bool {
	want := d.service(name)
	have := l.elements[setServices].find(want.Key)
	if have.Verdict != want.Verdict || have.Comment != nft.Comment(want.Comment) {
		return false
	}
	if d.circuit != (chain{}) {
		e := l.elements[setCircuit].find(want.Key)
		if e == nil || e.Verdict != nft.Goto(d.circuit.name()) {
			return false
		}
	}
	return slices.Equal(d.endpoints, listed.endpoints) && slices.Equal(d.local, listed.local) &&
		d.affinity == listed.affinity && slices.Equal(d.ranges, listed.ranges)
}

// countElements adds how many elements a destination has, by set.
func (d *destination) countElements(to map[string]int) {
	to[setServices]++
	to[setEndpoints] += len(d.endpoints)
	to[setLocal] += len(d.local)
	if d.circuit != (chain{}) {
		to[setCircuit]++
	}
	for _, r := range d.ranges {
		to[rangesSet(r.Bits())]++
	}
	if d.affinity != 0 {
		to[affineSet(d.affinity)]++
	}
}

// counted are the elements of the sets that Services share.
func (s *state) counted() map[string][]nft.Element {
	out := map[string][]nft.Element{}
	for _, set := range []string{setClusterIPs, setHairpin} {
		for a := range s.addressCounts(set) {
			out[set] = append(out[set], nft.Element{Key: addressKey(set, a)})
		}
	}
	return out
}

// reach adds a chain and those to which it leads.
func (c *config) reach(to map[chain]struct{}, of chain) {
	if _, found := to[of]; found || of == (chain{}) || of == (chain{treatment: reject}) {
		return
	}
	to[of] = struct{}{}
	for _, next := range of.next() {
		c.reach(to, next)
	}
}

// compare adds how elements of a set differ, and counts those of the listing. It returns the change, a
// new one if it was nil and anything differs.
func (c *change) compare(l *listing, set string, elements []nft.Element, used map[string]int) *change {
	of := l.elements[set]
	for i := range elements {
		e := &elements[i]
		have := of.find(e.Key)
		if have != nil {
			used[set]++
			if isElement(have, e) {
				continue
			}
		}
		if c == nil {
			c = newChange()
		}
		c.replace(set, have, e)
	}
	return c
}

// isElement reports whether an element of the kernel is as it should be.
func isElement(have, want *nft.Element) bool {
	return bytes.Equal(have.Data, want.Data) && bytes.Equal(have.End, want.End) && have.Verdict == want.Verdict && have.Comment == nft.Comment(want.Comment)
}

// compareLayout compares sets and chains.
func (c *config) compareLayout(out *comparison, l *listing) {
	sets := c.sets()
	for s := range out.desired.numbered {
		sets = append(sets, c.numbered(s))
	}
	known := map[string]struct{}{}
	for _, s := range sets {
		known[s.Name] = struct{}{}
		have, found := l.sets[s.Name]
		switch {
		case !found:
			out.sets = append(out.sets, s)
		case !have.Is(s):
			out.rebuild = true
		}
	}
	out.unknownSets = unknown(l.sets, known)
	known = map[string]struct{}{}
	chains := c.fixedChains(out.desired.numbered)
	for of := range out.desired.chains {
		chains = append(chains, fixedChain{name: of.name(), rules: c.rules(of)})
	}
	for _, want := range chains {
		known[want.name] = struct{}{}
		hook, found := l.chains[want.name]
		switch {
		case found && (hook == nil) != (want.hook == nil), found && hook != nil && *hook != *want.hook:
			out.rebuild = true
		case !found || !slices.EqualFunc(want.rules, l.rules[want.name], func(w rule, have []nft.Expr) bool { return nft.Same(w, have) }):
			out.chains = append(out.chains, want)
		}
	}
	out.unknownChains = unknown(l.chains, known)
	slices.SortFunc(out.sets, func(a, b *nft.Set) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(out.chains, func(a, b fixedChain) int { return strings.Compare(a.name, b.name) })
}

// unknown returns the names that are not known, sorted.
func unknown[V any](all map[string]V, known map[string]struct{}) []string {
	var out []string
	for name := range all {
		if _, found := known[name]; !found {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// removeUnknownSets appends to a batch what removes the sets that other programs have added to the table,
// once nothing of ours leads there. Their chains can only be removed by a later batch: the sets may lead
// there, and older kernels notice only then that they do not.
func (d *comparison) removeUnknownSets(b *nft.Batch, t nft.Table) {
	if len(d.unknownSets) == 0 {
		return
	}
	d.flushUnknown(b, t)
	for _, name := range d.unknownSets {
		b.DeleteSet(t, name)
	}
}

// removeUnknownChains does the same for chains.
func (d *comparison) removeUnknownChains(b *nft.Batch, t nft.Table) {
	d.flushUnknown(b, t) // they may lead to each other
	for _, name := range d.unknownChains {
		b.DeleteChain(t, name)
	}
}

func (d *comparison) flushUnknown(b *nft.Batch, t nft.Table) {
	for _, name := range d.unknownChains {
		b.FlushChain(t, name)
	}
}

// layout appends to a batch what makes sets, chains and the table's owner as desired. Chains are all added before
// their rules: rules lead to other chains.
func (d *comparison) layout(b *nft.Batch, t nft.Table, owned bool) {
	b.AddTable(t, tableComment, owned)
	for _, s := range d.sets {
		b.AddSet(t, s)
	}
	for _, c := range d.chains {
		b.AddChain(t, c.name, c.hook)
		b.FlushChain(t, c.name)
	}
	for _, c := range d.chains {
		for _, r := range c.rules {
			b.AddRule(t, c.name, "", r...)
		}
	}
}

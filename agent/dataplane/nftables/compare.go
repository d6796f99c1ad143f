package nftables

import (
	"bytes"
	"maps"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nft"
)

// comparison is how a listing differs from the desired state.
type comparison struct {
	// former is the state of the listing, desired that after everything is written.
	former, desired *state
	// rebuild: a set has another description, which takes a new table.
	rebuild bool
	// sets are those that are missing, chains those that are missing or have other rules.
	sets   []*nft.Set
	chains []fixedChain
	// services are the changes of Services that differ.
	services map[dataplane.ServiceName]*change
	// stale are elements that belong to no desired Service.
	stale *change
}

// equal reports whether nothing differs.
func (d *comparison) equal() bool {
	return !d.rebuild && len(d.sets)+len(d.chains)+len(d.services)+d.stale.size() == 0
}

func (c *change) size() (n int) {
	for _, of := range []map[string][]nft.Element{c.deleted, c.added} {
		for _, elements := range of {
			n += len(elements)
		}
	}
	return n
}

// compare compares a listing to the plans of all Services. Endpoints of the plans are put in the
// order of the listing.
func (c *config) compare(l *listing, plans map[dataplane.ServiceName]*servicePlan) *comparison {
	former := c.state(l)
	out := &comparison{former: former, desired: newState(), services: map[dataplane.ServiceName]*change{}, stale: newChange()}
	out.desired.timeouts = former.timeouts // sets of earlier Services stay: rules use them
	shared := map[string]map[string]nft.Element{setClusterIPs: {}, setHairpin: {}}
	used := map[string]map[string]struct{}{}
	for _, name := range slices.SortedFunc(maps.Keys(plans), dataplane.ServiceName.Compare) {
		plan := plans[name]
		for i := range plan.destinations {
			d := &plan.destinations[i]
			if o := former.destinations[d.key]; o.destination != nil {
				d.endpoints, d.local = arrange(o.endpoints, d.endpoints), arrange(o.local, d.local)
			}
		}
		u := c.newUpdate(out.desired)
		u.set(name, plan)
		u.chains = out.desired.chains
		for i := range plan.destinations {
			c.reach(u.chains, plan.destinations[i].chain)
			c.reach(u.chains, plan.destinations[i].circuit)
		}
		difference := newChange()
		for set, elements := range u.added {
			difference.compare(l, set, elements, used)
		}
		if difference.size() > 0 {
			out.services[name] = difference
		}
		u.done()
	}
	for a := range out.desired.clusterIPs {
		shared[setClusterIPs][string(a.AsSlice())] = nft.Element{Key: a.AsSlice()}
	}
	for a := range out.desired.hairpin {
		k := slices.Concat(a.AsSlice(), a.AsSlice())
		shared[setHairpin][string(k)] = nft.Element{Key: k}
	}
	for set, elements := range shared {
		out.stale.compare(l, set, slices.Collect(maps.Values(elements)), used)
	}
	for set, elements := range l.elements {
		for k, e := range elements {
			if _, found := used[set][k]; !found {
				out.stale.replace(set, &e, nil)
			}
		}
	}
	c.compareLayout(out, l)
	return out
}

// reach adds a chain and those to which it leads.
func (c *config) reach(to map[chain]struct{}, of chain) {
	if of == (chain{}) || of.treatment == reject {
		return
	}
	to[of] = struct{}{}
	for _, next := range of.next() {
		c.reach(to, next)
	}
}

// compare adds how elements of a set differ, and notes which elements of the listing are used.
func (c *change) compare(l *listing, set string, elements []nft.Element, used map[string]map[string]struct{}) {
	if used[set] == nil {
		used[set] = map[string]struct{}{}
	}
	for i := range elements {
		e := &elements[i]
		have, found := l.elements[set][string(e.Key)]
		if found {
			used[set][string(e.Key)] = struct{}{}
		}
		switch {
		case !found:
			c.replace(set, nil, e)
		case !bytes.Equal(have.Data, e.Data) || !bytes.Equal(have.End, e.End) || have.Verdict != e.Verdict || have.Comment != nft.Comment(e.Comment):
			c.replace(set, &have, e)
		}
	}
}

// compareLayout compares sets and chains.
func (c *config) compareLayout(out *comparison, l *listing) {
	sets := c.sets()
	for seconds := range out.desired.timeouts {
		sets = append(sets, c.affine(seconds))
	}
	for _, s := range sets {
		have, found := l.sets[s.Name]
		switch {
		case !found:
			out.sets = append(out.sets, s)
		case !have.Is(s):
			out.rebuild = true
		}
	}
	chains := c.fixedChains(slices.Sorted(maps.Keys(out.desired.timeouts)))
	for of := range out.desired.chains {
		chains = append(chains, fixedChain{name: of.name(), rules: c.rules(of)})
	}
	for _, want := range chains {
		hook, found := l.chains[want.name]
		switch {
		case found && (hook == nil) != (want.hook == nil), found && hook != nil && *hook != *want.hook:
			out.rebuild = true
		case !found || !slices.EqualFunc(want.rules, l.rules[want.name], func(w rule, have []nft.Expr) bool { return nft.Same(w, have) }):
			out.chains = append(out.chains, want)
		}
	}
}

// layout appends to a batch what makes sets and chains as desired. Chains are all added before
// their rules: rules lead to other chains.
func (d *comparison) layout(b *nft.Batch, t nft.Table) {
	b.AddTable(t, tableComment, false)
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

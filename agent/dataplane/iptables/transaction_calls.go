package iptables

import (
	"maps"
	"slices"
	"strings"
)

// serviceChange is what is to be written of one Service, in the order in which it may be
// written step by step: after each step packets find chains that are complete.
type serviceChange struct {
	fresh   []*chain       // chains that do not exist: nothing leads to them yet
	changed []*chain       // chains that packets may pass
	add     []dispatchRule // in nat and filter
	remove  []dispatchRule
	full    []string // chains with rules that nothing leads to once the above is written
	gone    []string // these, and empty ones
}

// changeOf is what turns old into plan; a nil old means nothing, a nil plan none
// desired.
func changeOf(old *planned, plan *servicePlan) *serviceChange {
	if old == nil {
		old = &planned{}
	}
	if plan == nil {
		plan = &servicePlan{}
	}
	s := &serviceChange{}
	had := make(map[string]plannedChain, len(old.chains))
	for _, c := range old.chains {
		had[c.name] = c
	}
	// Parts that grow come before what leads to them, those that shrink after it: while the number of
	// parts changes, each endpoint is in one that packets may pass.
	var grow, lead, shrink []*chain
	for i := range plan.chains {
		c := &plan.chains[i]
		switch have, exists := had[c.name]; {
		case !exists:
			s.fresh = append(s.fresh, c)
		case have.hash == c.hash:
		case !c.inner:
			lead = append(lead, c)
		case c.rules < have.rules:
			shrink = append(shrink, c)
		default:
			grow = append(grow, c)
		}
		delete(had, c.name)
	}
	plan.takeTexts(old.dispatch)
	s.changed = slices.Concat(grow, lead, shrink)
	s.add, s.remove = without(plan.dispatch, old.dispatch), without(old.dispatch, plan.dispatch)
	for _, c := range old.chains {
		if _, gone := had[c.name]; !gone {
			continue
		}
		if s.gone = append(s.gone, c.name); c.rules > 0 {
			s.full = append(s.full, c.name)
		}
	}
	return s
}

// placed is a rule of a shared chain, whatever its text.
type placed struct {
	in   chainID
	hash uint64
}

func (r *dispatchRule) placed() placed { return placed{r.in, r.hash} }

// takeTexts has rules that stay share the text of what the kernel has, so that those of a large Service
// are in memory once.
func (p *servicePlan) takeTexts(of []dispatchRule) {
	texts := make(map[placed]string, len(of))
	for _, r := range of {
		texts[r.placed()] = r.spec
	}
	for i := range p.dispatch {
		if text, known := texts[p.dispatch[i].placed()]; known {
			p.dispatch[i].spec = text
		}
	}
}

// without returns the rules of list but for those of others, each as often as it is there.
func without(list, others []dispatchRule) []dispatchRule {
	open := make(map[placed]int, len(others))
	for _, r := range others {
		open[r.placed()]++
	}
	var out []dispatchRule
	for _, r := range list {
		if k := r.placed(); open[k] > 0 {
			open[k]--
		} else {
			out = append(out, r)
		}
	}
	return out
}

func (s *serviceChange) lines() int {
	n := len(s.add) + len(s.remove) + len(s.full) + len(s.gone)
	for _, list := range [][]*chain{s.fresh, s.changed} {
		for _, c := range list {
			n += 1 + c.rules
		}
	}
	return n
}

// maxSingly is how many rules of a Service go one by one from a shared chain at a time.
// The programs look for each of them through the whole chain.
const maxSingly = 50

// sweep replaces many rules of a shared chain: it is listed and written as a whole.
type sweep struct {
	in   chainID
	open map[uint64]int // how many go, by hash
	add  []string
}

// sweeps parts rules to be removed into sweeps and those that go one by one.
func sweeps(rules []dispatchRule) (out []*sweep, singly []dispatchRule) {
	byChain := map[chainID][]dispatchRule{}
	for _, r := range rules {
		byChain[r.in] = append(byChain[r.in], r)
	}
	for _, r := range rules {
		all := byChain[r.in]
		switch {
		case len(all) == 0: // in a sweep
		case len(all) <= maxSingly:
			singly = append(singly, r)
		default:
			s := &sweep{in: r.in, open: make(map[uint64]int, len(all))}
			for _, r := range all {
				s.open[r.hash]++
			}
			out = append(out, s)
			delete(byChain, r.in)
		}
	}
	return out, singly
}

// rest returns those of a chain's rules that stay, as the kernel prints them.
func (s *sweep) rest(rules []kernelRule) []string {
	out := make([]string, 0, len(rules))
	open := maps.Clone(s.open)
	for _, r := range rules {
		if open[r.hash] > 0 {
			open[r.hash]--
		} else {
			out = append(out, r.spec)
		}
	}
	return out
}

// calls collects changes in transactions of at most limit lines, each for one call of
// iptables-restore. A change of more is spread over several, in its order: then rejections that
// are new come first, those that end last, and in between packets use old or new chains
// until all are new. Only a chain that packets may pass is never parted, so a call
// carries at most limit lines or one such chain. Changes of several Services that have at
// most limit lines together are one call.
type calls struct {
	limit int
	list  []*transaction
}

// with returns the transaction that takes the next lines.
func (c *calls) with(lines int) *transaction {
	if n := len(c.list); n > 0 && (c.list[n-1].empty() || c.list[n-1].lines+lines <= c.limit) {
		return c.list[n-1]
	}
	t := &transaction{}
	c.list = append(c.list, t)
	return t
}

func (c *calls) cut() { c.list = append(c.list, &transaction{}) }

func (c *calls) add(s *serviceChange) {
	c.rules(s.add, filter, (*transaction).addRule)
	for _, chain := range s.fresh {
		c.fresh(chain)
	}
	for _, chain := range s.changed {
		c.with(1 + chain.rules).writeChain(chain)
	}
	c.replace(s.remove, s.add, nat)
	for _, name := range s.full { // all emptied first: they jump to each other
		c.with(1).emptyChain(name)
	}
	for _, name := range s.gone {
		c.with(1).dropChain(name)
	}
	c.replace(s.remove, nil, filter)
}

// replace replaces rules in the shared chains of a table. A sweep is a call by itself.
func (c *calls) replace(remove, add []dispatchRule, in table) {
	large, singly := sweeps(slices.DeleteFunc(slices.Clone(remove), func(r dispatchRule) bool { return r.in.table != in }))
	add = slices.Clone(add)
	for _, s := range large {
		t := &transaction{sweep: s, lines: len(s.open)}
		add = slices.DeleteFunc(add, func(r dispatchRule) bool {
			if r.in == s.in {
				s.add = append(s.add, r.spec)
				t.effect.added = append(t.effect.added, r)
			}
			return r.in == s.in
		})
		for _, r := range remove {
			if r.in == s.in {
				t.effect.removed = append(t.effect.removed, r)
			}
		}
		c.list = append(c.list, t, &transaction{})
	}
	c.rules(add, in, (*transaction).addRule)
	c.rules(singly, in, (*transaction).takeRule)
}

func (c *calls) rules(list []dispatchRule, in table, write func(*transaction, dispatchRule)) {
	for _, r := range list {
		if r.in.table == in {
			write(c.with(1), r)
		}
	}
}

// fresh writes a chain that nothing leads to, in parts if it is too long for one call. A pause between
// those would have it begin anew.
func (c *calls) fresh(chain *chain) {
	if chain.rules < c.limit {
		c.with(1 + chain.rules).writeChain(chain)
		return
	}
	t := c.with(1)
	t.line(&t.declare, emptied(chain.name))
	// Until its last line it counts as another chain that has rules, so that it is replaced or emptied
	// if a call is rejected.
	t.effect.chains = append(t.effect.chains, plannedChain{name: chain.name, rules: 1})
	first := len(c.list)
	for line := range strings.Lines(chain.text) {
		t := c.with(1)
		t.line(&t.nat, strings.TrimSuffix(line, "\n"))
	}
	for _, t := range c.list[first:] {
		t.amid = true
	}
	t = c.with(0)
	t.effect.chains = append(t.effect.chains, plannedChain{name: chain.name, hash: chain.hash, rules: chain.rules})
}

type effect struct {
	chains         []plannedChain // as it leaves them
	dropped        []string       // chains
	added, removed []dispatchRule
}

// after is what the kernel has of a Service once calls have written a part of its change. A
// nil p means nothing.
func (p *planned) after(written []*transaction) *planned {
	out := &planned{}
	if p != nil {
		*out = *p
	}
	chains := make(map[string]plannedChain, len(out.chains))
	for _, c := range out.chains {
		chains[c.name] = c
	}
	var added, removed []dispatchRule
	for _, t := range written {
		for _, c := range t.effect.chains {
			chains[c.name] = c
		}
		for _, name := range t.effect.dropped {
			delete(chains, name)
		}
		added, removed = append(added, t.effect.added...), append(removed, t.effect.removed...)
	}
	// All at once: no step of a change removes what an earlier one has added.
	out.dispatch = append(without(out.dispatch, removed), added...)
	out.chains = slices.AppendSeq(make([]plannedChain, 0, len(chains)), maps.Values(chains))
	slices.SortFunc(out.chains, func(a, b plannedChain) int { return strings.Compare(a.name, b.name) })
	return out
}

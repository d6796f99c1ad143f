package iptables

import (
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// plannedChain is a chain of one Service without its text.
type plannedChain struct {
	name  string
	hash  uint64
	rules int
}

// planned is a servicePlan without the text of its chains: what is remembered
// of a Service once it is in the kernel.
type planned struct {
	chains   []plannedChain
	dispatch []dispatchRule
}

func (p *servicePlan) planned() *planned {
	out := &planned{chains: make([]plannedChain, len(p.chains)), dispatch: p.dispatch}
	for i, c := range p.chains {
		out.chains[i] = plannedChain{name: c.name, hash: c.hash, rules: c.rules}
	}
	return out
}

// desired is all that the kernel should hold, as hashes.
type desired struct {
	config   *config
	services map[dataplane.ServiceName]*planned
}

func (c *config) plan(services map[dataplane.ServiceName]*dataplane.Service) *desired {
	w := &desired{config: c, services: make(map[dataplane.ServiceName]*planned, len(services))}
	for name, svc := range services {
		plan := c.planService(svc)
		w.services[name] = plan.planned()
	}
	return w
}

// counts returns how many chains and rules are desired, hooks included.
func (w *desired) counts() (chains, rules int) {
	for _, s := range w.config.sharedChains() {
		chains++
		rules += len(s.fixed)
	}
	rules += len(w.config.hooks())
	for _, p := range w.services {
		c, r := p.counts()
		chains += c
		rules += r
	}
	return chains, rules
}

func (p *planned) counts() (chains, rules int) {
	if p == nil {
		return 0, 0
	}
	rules = len(p.dispatch)
	for _, c := range p.chains {
		rules += c.rules
	}
	return len(p.chains), rules
}

// scope limits what a comparison may want removed.
type scope struct {
	// prune: what belongs to no desired Service may go too.
	prune bool
	// ended names Services of which nothing is desired any more, by a caller that
	// knows: their rules may go without prune.
	ended map[dataplane.ServiceName]struct{}
	// rejected Services keep what the kernel has of them.
	rejected map[dataplane.ServiceName]rejection
	// stuck chains are stale but cannot be deleted.
	stuck map[string]struct{}
	// kept Services may be newer in the kernel: nothing of them is replaced or
	// removed, only what is missing is added.
	kept map[dataplane.ServiceName]struct{}
}

// mayRemove reports whether a rule with the given comment may be removed. Fixed
// rules say "kubernetes" first.
func (s *scope) mayRemove(w *desired, comment string) bool {
	if comment == "kubernetes" || strings.HasPrefix(comment, "kubernetes ") {
		return true
	}
	name, ok := commentOwner(comment)
	if !ok {
		return s.prune
	}
	if _, rejected := s.rejected[name]; rejected || s.keeps(name) {
		return false
	}
	_, ended := s.ended[name]
	return s.prune || ended || w.services[name] != nil
}

// commentOwner returns the Service that a rule in a shared chain belongs to: the
// first word of its comment is the name of a port.
func commentOwner(comment string) (dataplane.ServiceName, bool) {
	word, _, _ := strings.Cut(comment, " ")
	namespace, rest, ok := strings.Cut(word, "/")
	service, _, _ := strings.Cut(rest, ":")
	return dataplane.ServiceName{Namespace: namespace, Name: service}, ok
}

// compareChains returns which chains of Services are missing or differ, by Service.
func compareChains(w *desired, k *kernelState, s *scope) map[dataplane.ServiceName][]string {
	out := map[dataplane.ServiceName][]string{}
	behind := servedOtherwise(w, k, s)
	for name, p := range w.services {
		if s.keeps(name) {
			if missing := behind.missing(p, k); len(missing) > 0 {
				out[name] = missing
			}
			continue
		}
		for _, c := range p.chains {
			if have := k.chains[chainID{nat, c.name}]; have == nil || have.hash != c.hash || have.count != c.rules {
				out[name] = append(out[name], c.name)
			}
		}
	}
	return out
}

// staleChains returns the chains in the kernel that belong to no desired Service,
// nor to what it has of a refused one.
func staleChains(w *desired, k *kernelState, s *scope) []string {
	live := map[string]bool{}
	note := func(p *planned) {
		if p != nil {
			for _, c := range p.chains {
				live[c.name] = true
			}
		}
	}
	for name, p := range w.services {
		if _, rejected := s.rejected[name]; !rejected {
			note(p)
		}
	}
	for _, why := range s.rejected {
		note(why.Held)
	}
	var out []string
	for id := range k.chains {
		if id.table == nat && isServiceChain(id.name) && !live[id.name] {
			out = append(out, id.name)
		}
	}
	slices.Sort(out)
	return out
}

// ownedRule is a dispatch rule with the Service it belongs to.
type ownedRule struct {
	dispatchRule
	owner dataplane.ServiceName
}

// sharedDiff is how a chain with rules of many Services differs.
type sharedDiff struct {
	chain   sharedChain
	missing bool        // the chain does not exist
	head    []string    // rules of mode IPVS that must come first, as the kernel prints them
	fixed   bool        // the fixed rules are not as they should be
	add     []ownedRule // rules of Services that are missing
	remove  []string    // rules in the kernel that must go, as it prints them
	keep    []string    // rules in the kernel that stay, as it prints them
}

func (d *sharedDiff) differs() bool {
	return d.missing || d.fixed || len(d.add)+len(d.remove) > 0
}

// compareShared returns how the shared chains differ, in the order in which
// they must be written. Rules of rejected Services are left as they are.
func compareShared(w *desired, k *kernelState, s *scope) []*sharedDiff {
	byChain := map[chainID][]ownedRule{}
	behind := servedOtherwise(w, k, s)
	for name, p := range w.services {
		if _, rejected := s.rejected[name]; rejected {
			continue
		}
		kept := s.keeps(name)
		for _, r := range p.dispatch {
			if kept && behind.ports[ruleOf(r.spec)] && !behind.held[r.placed()] {
				continue
			}
			byChain[r.in] = append(byChain[r.in], ownedRule{r, name})
		}
	}
	var out []*sharedDiff
	for _, c := range w.config.sharedChains() {
		d := compareSharedChain(w, k, s, c, byChain[c.id])
		if d.differs() {
			out = append(out, d)
		}
	}
	return out
}

func compareSharedChain(w *desired, k *kernelState, s *scope, c sharedChain, want []ownedRule) *sharedDiff {
	d := &sharedDiff{chain: c}
	have := k.chains[c.id]
	if have == nil {
		d.missing, d.add, d.fixed = true, want, len(c.fixed) > 0
		return d
	}
	if !c.dispatch {
		rest := have
		if c.id == (chainID{nat, chainPostrouting}) {
			rest, d.head = splitIPVS(have)
		}
		d.fixed = !fixedHolds(c, rest)
		return d
	}
	rules, tailHolds := cutTail(have.rules, c.fixed)
	d.fixed = !tailHolds
	open := make(map[uint64]int, len(want))
	for _, r := range want {
		open[r.hash]++
	}
	for _, r := range rules {
		switch {
		case open[r.hash] > 0:
			open[r.hash]--
			d.keep = append(d.keep, r.spec)
		case c.id.table == nat && marksOwnSource(r.spec):
			d.head = append(d.head, r.spec)
		case passesLoopback(r), isIPVSRule(r) && s.prune:
			d.remove = append(d.remove, r.spec)
		case isIPVSRule(r):
			d.keep = append(d.keep, r.spec)
		case s.mayRemove(w, comment(r.spec)):
			d.remove = append(d.remove, r.spec)
		default:
			d.keep = append(d.keep, r.spec)
		}
	}
	for _, r := range want {
		if open[r.hash] > 0 {
			open[r.hash]--
			d.add = append(d.add, r)
		}
	}
	return d
}

// splitIPVS splits off the rules of mode IPVS at the head of a chain. They stay as
// long as connections may go through IPVS.
func splitIPVS(have *kernelChain) (rest *kernelChain, head []string) {
	i := slices.IndexFunc(have.rules, func(r kernelRule) bool { return !isIPVSRule(r) })
	if i <= 0 {
		return have, nil
	}
	rest = &kernelChain{}
	for _, r := range have.rules[:i] {
		head = append(head, r.spec)
	}
	for _, r := range have.rules[i:] {
		rest.add(r.spec, true)
	}
	return rest, head
}

// fixedHolds reports whether a chain without dispatch rules is as it should be.
func fixedHolds(c sharedChain, have *kernelChain) bool {
	if c.foreign {
		return len(missingRules(c.fixed, have)) == 0
	}
	var hash uint64
	for _, spec := range c.fixed {
		hash = chainRule(hash, ruleHash(spec))
	}
	return have.count == len(c.fixed) && have.hash == hash
}

// missingRules returns those of specs that a chain does not hold.
func missingRules(specs []string, have *kernelChain) []string {
	var out []string
	for _, spec := range specs {
		h := ruleHash(spec)
		if !slices.ContainsFunc(have.rules, func(r kernelRule) bool { return r.hash == h }) {
			out = append(out, spec)
		}
	}
	return out
}

// cutTail splits off the fixed rules at the end of a chain, and reports whether
// they are there. Where they are not, whatever part of them the chain holds is
// among the rules that are returned.
func cutTail(rules []kernelRule, tail []string) ([]kernelRule, bool) {
	start := len(rules) - len(tail)
	if start < 0 {
		return rules, false
	}
	for i, spec := range tail {
		if rules[start+i].hash != ruleHash(spec) {
			return rules, false
		}
	}
	return rules[:start], true
}

// compareHooks returns the jumps that are missing, those of one built-in chain
// from first to last.
func compareHooks(w *desired, k *kernelState) []hook {
	var out []hook
	for _, h := range w.config.hooks() {
		hash := ruleHash(h.spec)
		have := k.chains[h.in]
		if have == nil || !slices.ContainsFunc(have.rules, func(r kernelRule) bool { return r.hash == hash }) {
			out = append(out, h)
		}
	}
	return out
}

// leadNowhere reports whether all jumps lead to chains that hold no rules of
// Services, so that nothing changes by them.
func leadNowhere(hooks []hook, w *desired, k *kernelState) bool {
	for _, c := range w.config.sharedChains() {
		have := k.chains[c.id]
		if !c.dispatch || have == nil || have.count == 0 {
			continue
		}
		jump := "-j " + c.id.name
		if slices.ContainsFunc(hooks, func(h hook) bool {
			return h.in.table == c.id.table && (h.spec == jump || strings.HasSuffix(h.spec, " "+jump))
		}) {
			return false
		}
	}
	return true
}

// difference says, human-readable, how the kernel differs from the desired state.
func difference(w *desired, k *kernelState, s *scope) dataplane.Difference {
	var d dataplane.Difference
	find(w, k, s, func(f found) {
		d.Count++
		if len(d.Examples) < dataplane.MaxExamples {
			d.Examples = append(d.Examples, f.String())
		}
	})
	d.Counts = countsOf(k.ours(w))
	return d
}

// ours counts the chains and rules in the kernel that are ours, jumps from
// built-in chains included.
func (k *kernelState) ours(w *desired) (chains, rules int) {
	for _, c := range w.config.sharedChains() {
		have := k.chains[c.id]
		switch {
		case have == nil:
			continue
		case c.foreign:
			rules += len(c.fixed) - len(missingRules(c.fixed, have))
		default:
			rules += have.count
		}
		chains++
	}
	for id, c := range k.chains {
		if id.table == nat && isServiceChain(id.name) {
			chains++
			rules += c.count
		}
	}
	return chains, rules + len(w.config.hooks()) - len(compareHooks(w, k))
}

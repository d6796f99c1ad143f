package iptables

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/fixedrules"
)

// plannedChain is a chain of one Service without its text.
type plannedChain struct {
	name  string
	hash  uint64
	rules int
}

// planned is a servicePlan without the text of its chains: what is remembered
// of a Service once the kernel has it.
type planned struct {
	chains   []plannedChain
	dispatch []dispatchRule
}

// hashes are those of the chains, by name.
func (p *planned) hashes() map[string]uint64 {
	out := make(map[string]uint64, len(p.chains))
	for _, c := range p.chains {
		out[c.name] = c.hash
	}
	return out
}

func (p *servicePlan) planned() *planned {
	out := &planned{chains: make([]plannedChain, len(p.chains)), dispatch: p.dispatch}
	for i, c := range p.chains {
		out.chains[i] = plannedChain{name: c.name, hash: c.hash, rules: c.rules}
	}
	return out
}

// desired is the desired state of the kernel, as hashes.
type desired struct {
	config   *config
	services map[dataplane.ServiceName]*planned
}

func (c *config) plan(services map[dataplane.ServiceName]*dataplane.Service) *desired {
	w := &desired{config: c, services: make(map[dataplane.ServiceName]*planned, len(services))}
	for name, svc := range services {
		w.services[name] = c.planned(svc)
	}
	return w
}

// planned plans a Service without texts.
func (c *config) planned(svc *dataplane.Service) *planned {
	plan := c.planTexts(svc, func(*chain) bool { return false })
	return plan.planned()
}

// scope limits what a comparison removes.
type scope struct {
	modes *ownership
	// prune: what belongs to no desired Service is removed, too.
	prune bool
	// dirty Services have changed. Of those that no longer exist, rules are removed without prune, too.
	dirty map[dataplane.ServiceName]struct{}
	// rejected Services retain what the kernel has of them.
	rejected map[dataplane.ServiceName]rejection
	// stuck chains are stale but cannot be deleted.
	stuck sets.Set[string]
	// preserved Services may be newer in the kernel: only what is missing of them is added, nothing
	// replaced or removed.
	preserved map[dataplane.ServiceName]struct{}
}

// mayRemove reports whether a rule with the given comment may be removed. Comments of fixed
// rules begin with "kubernetes".
func (s *scope) mayRemove(w *desired, comment string) bool {
	if comment == "kubernetes" || strings.HasPrefix(comment, "kubernetes ") {
		return true
	}
	name, ok := commentOwner(comment)
	if !ok {
		return s.prune
	}
	if _, rejected := s.rejected[name]; rejected || s.preserves(name) {
		return false
	}
	_, dirty := s.dirty[name]
	return s.prune || dirty || w.services[name] != nil
}

// commentOwner returns the Service that a rule in a shared chain belongs to: the
// first word of its comment is the name of a port.
func commentOwner(comment string) (dataplane.ServiceName, bool) {
	word, _, _ := strings.Cut(comment, " ")
	namespace, rest, ok := strings.Cut(word, "/")
	service, _, _ := strings.Cut(rest, ":")
	return dataplane.ServiceName{Namespace: namespace, Name: service}, ok
}

// compareChains returns the chains of Services that are missing or differ.
func compareChains(w *desired, k *kernelState, s *scope) map[dataplane.ServiceName][]string {
	out := map[dataplane.ServiceName][]string{}
	newer := newerInKernel(w, k, s)
	for name, p := range w.services {
		if s.preserves(name) {
			if missing := newer.missing(p, k); len(missing) > 0 {
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
// nor to what it has of a rejected one.
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
		note(why.Actual)
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

type sharedDiff struct {
	chain   sharedChain
	missing bool // the chain does not exist
	fixed   bool // the fixed rules differ
	add     []ownedRule
	// The following are rules in the kernel, as it prints them.
	head   []string // of other modes, which must come first
	remove []string
	stay   []string
}

// compareShared returns how the shared chains differ, in the order in which
// they must be written. Rules of rejected Services stay as they are.
func compareShared(w *desired, k *kernelState, s *scope) []*sharedDiff {
	byChain := map[chainID][]ownedRule{}
	newer := newerInKernel(w, k, s)
	for name, p := range w.services {
		if _, rejected := s.rejected[name]; rejected {
			continue
		}
		preserved := s.preserves(name)
		for _, r := range p.dispatch {
			if preserved && newer.ports[portOf(r.spec)] && !newer.present[r.placed()] {
				continue
			}
			byChain[r.in] = append(byChain[r.in], ownedRule{r, name})
		}
	}
	var out []*sharedDiff
	for _, c := range w.config.sharedChains() {
		d := compareSharedChain(w, k, s, c, byChain[c.id])
		if d.missing || d.fixed || len(d.add)+len(d.remove) > 0 {
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
			rest, d.head = s.modes.splitHead(c.id, have)
		}
		if d.fixed = !rest.equals(c.fixed); c.mixed {
			d.fixed = len(missingRules(c.fixed, rest)) > 0
		}
		return d
	}
	rules, hasTail := cutTail(have.rules, c.fixed)
	d.fixed = !hasTail
	open := make(map[uint64]int, len(want))
	for _, r := range want {
		open[r.hash]++
	}
	for _, r := range rules {
		switch {
		case open[r.hash] > 0:
			open[r.hash]--
			d.stay = append(d.stay, r.spec)
		case s.modes.others.precedes(c.id, r.hash):
			d.head = append(d.head, r.spec)
		case s.modes.others.declares(c.id, r.hash), s.mayRemove(w, comment(r.spec)):
			d.remove = append(d.remove, r.spec)
		default:
			d.stay = append(d.stay, r.spec)
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

// splitHead splits off the rules of other modes at the head of a chain. They stay as
// long as connections may use them.
func (o *ownership) splitHead(id chainID, have *kernelChain) (rest *kernelChain, head []string) {
	i := slices.IndexFunc(have.rules, func(r kernelRule) bool { return !o.theirs(id, r) })
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

func missingRules(specs []string, have *kernelChain) []string {
	return slices.DeleteFunc(slices.Clone(specs), func(spec string) bool { return have.has(ruleHash(spec)) })
}

// cutTail splits off the fixed rules at the end of a chain, and reports whether
// they are there. If they are not, it returns all rules.
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

// missingJumps returns the jumps that the kernel lacks, in their order.
func missingJumps(jumps []fixedrules.Jump, k *kernelState) []fixedrules.Jump {
	return slices.DeleteFunc(slices.Clone(jumps), func(j fixedrules.Jump) bool { return k.chains[builtIn(&j)].has(ruleHash(j.Rule)) })
}

// leadNowhere reports whether all jumps lead to chains without rules of
// Services, so that they change nothing.
func leadNowhere(jumps []fixedrules.Jump, w *desired, k *kernelState) bool {
	for _, c := range w.config.sharedChains() {
		have := k.chains[c.id]
		if c.dispatch && have != nil && have.count > 0 && slices.ContainsFunc(jumps, func(j fixedrules.Jump) bool {
			target, _ := jumpTarget(j.Rule)
			return chainID{j.Table, target} == c.id
		}) {
			return false
		}
	}
	return true
}

func difference(w *desired, k *kernelState, s *scope) dataplane.Difference {
	var d dataplane.Difference
	find(w, k, s, func(f found) {
		d.Count++
		if len(d.Examples) < dataplane.MaxExamples {
			d.Examples = append(d.Examples, f.String())
		}
	})
	d.Counts = k.ours(w).counts()
	return d
}

func (k *kernelState) ours(w *desired) tally {
	var t tally
	for _, c := range w.config.sharedChains() {
		have := k.chains[c.id]
		if have == nil {
			continue
		}
		t.chains++
		if c.mixed {
			t.rules += len(c.fixed) - len(missingRules(c.fixed, have))
		} else {
			t.rules += have.count
		}
	}
	for id, c := range k.chains {
		if id.table == nat && isServiceChain(id.name) {
			t.chains++
			t.rules += c.count
		}
	}
	jumps := w.config.jumps()
	t.rules += len(jumps) - len(missingJumps(jumps, k))
	return t
}

package ipvs

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/fixedrules"
)

// ownedServer is a virtual server and the Service that needs it.
type ownedServer struct {
	*plannedServer
	owner dataplane.ServiceName
}

// needs is what plans need in the kernel. Addresses, entries and rules are counted, because
// several plans may need them.
type needs struct {
	servers map[Key]ownedServer
	bound   map[netip.Addr]int
	entries map[setEntry]int
	used    map[SetName]int // number of entries
	out     map[outRule]int
	reals   int // of all servers
}

func newNeeds() needs {
	return needs{
		servers: map[Key]ownedServer{}, bound: map[netip.Addr]int{}, entries: map[setEntry]int{},
		used: map[SetName]int{}, out: map[outRule]int{},
	}
}

// bindings returns the addresses of a plan that must be on kube-ipvs0, without repetition.
func (p *servicePlan) bindings() []netip.Addr {
	var out []netip.Addr
	var before dataplane.Once[netip.Addr]
	for i := range p.servers {
		if s := &p.servers[i]; s.bind && before.First(s.Key.Addr) {
			out = append(out, s.Key.Addr)
		}
	}
	return out
}

// add adds what a plan needs.
func (n *needs) add(owner dataplane.ServiceName, p *servicePlan) {
	for i := range serversOf(p) {
		s := &p.servers[i]
		n.servers[s.Key] = ownedServer{s, owner}
		n.reals += len(s.reals)
	}
	n.count(p, 1)
}

// remove removes what a plan needed.
func (n *needs) remove(owner dataplane.ServiceName, p *servicePlan) {
	for i := range serversOf(p) {
		s := &p.servers[i]
		n.reals -= len(s.reals)
		if n.servers[s.Key].owner == owner && n.servers[s.Key].plannedServer == s {
			delete(n.servers, s.Key)
		}
	}
	n.count(p, -1)
}

// count counts a plan, which may be nil, so many times. In needs that are a difference,
// counts may be negative.
func (n *needs) count(p *servicePlan, times int) {
	if p == nil {
		return
	}
	for _, a := range p.bindings() {
		addCount(n.bound, a, times)
	}
	for _, e := range p.entries {
		if addCount(n.entries, e, times) {
			addCount(n.used, e.set, times)
		}
	}
	for _, r := range p.outRules {
		addCount(n.out, r, times)
	}
}

// addCount adds to a count, and reports whether it has become positive or has ceased to be.
func addCount[K comparable](counts map[K]int, k K, n int) bool {
	before := counts[k]
	if counts[k] = before + n; before == -n {
		delete(counts, k)
	}
	return before > 0 != (before+n > 0)
}

func serversOf(p *servicePlan) []plannedServer {
	if p == nil {
		return nil
	}
	return p.servers
}

// desired is the desired state of the kernel.
type desired struct {
	config   *config
	services map[dataplane.ServiceName]*servicePlan
	needs    needs
	// left are entries of ipsets that stay although no Service in services needs them.
	// They count in needs.
	left sets.Set[setEntry]
}

func newDesired(c *config) *desired {
	return &desired{config: c, services: map[dataplane.ServiceName]*servicePlan{}, needs: newNeeds()}
}

// set replaces the plan of a Service; nil: there is none.
func (w *desired) set(name dataplane.ServiceName, p *servicePlan) {
	previous := w.services[name]
	if p == nil {
		delete(w.services, name)
	} else {
		w.services[name] = p
	}
	w.needs.add(name, p)
	w.needs.remove(name, previous)
}

// leave preserves entries of ipsets in the kernel, and the rules that belong to them,
// because they may be of Services that are not known yet. It counts each entry once.
func (w *desired) leave(entries []setEntry, have *snapshot) {
	if w.left == nil {
		w.left = make(sets.Set[setEntry], len(entries))
	}
	plan := &servicePlan{}
	for _, e := range entries {
		if w.left.Has(e) {
			continue
		}
		w.left[e] = struct{}{}
		plan.entries = append(plan.entries, e)
		if r, has := w.config.outRuleOf(e, have); has {
			plan.outRules = append(plan.outRules, r)
		}
	}
	w.needs.add(dataplane.ServiceName{}, plan)
}

// outRuleOf returns the rule that belongs to an entry in the kernel, if that restricts a
// load-balancer address and the node is in none of its ranges.
func (c *config) outRuleOf(e setEntry, have *snapshot) (outRule, bool) {
	k, ok := parseKey(e.entry)
	if !ok || e.set != c.set(setLoadBalancerFW) || have.has(c.set(setSourceIP), keyAndAddress(k, k.Addr)) {
		return "", false
	}
	return outRuleFor(k), true
}

// renounce removes entries of ipsets, and the rules that belong to them, that only Services
// need for which the kernel's state has precedence.
func (w *desired) renounce(entries []setEntry) {
	plan := &servicePlan{entries: entries}
	for _, e := range entries {
		if k, ok := parseKey(e.entry); ok && e.set == w.config.set(setLoadBalancerFW) {
			if r := outRuleFor(k); w.needs.out[r] > 0 {
				plan.outRules = append(plan.outRules, r)
			}
		}
	}
	w.needs.remove(dataplane.ServiceName{}, plan)
}

// rules returns the desired chains and jumps.
func (w *desired) rules() fixedrules.Rules { return w.config.rules(w.needs.used, w.needs.out) }

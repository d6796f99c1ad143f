package ipvs

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ownedServer is a virtual server and the Service that needs it.
type ownedServer struct {
	*plannedServer
	owner dataplane.ServiceName
}

// needs is what plans need in the kernel. Addresses, entries and rules may be
// needed by several of them and are counted.
type needs struct {
	servers map[Key]ownedServer
	bound   map[netip.Addr]int
	entries map[setEntry]int
	used    map[SetName]int // the number of entries of each ipset
	out     map[outRule]int
	reals   int // of all servers together
}

func newNeeds() needs {
	return needs{
		servers: map[Key]ownedServer{}, bound: map[netip.Addr]int{}, entries: map[setEntry]int{},
		used: map[SetName]int{}, out: map[outRule]int{},
	}
}

// bindings are the addresses of a plan that are to be on kube-ipvs0, each once.
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
	if p == nil {
		return
	}
	for i := range p.servers {
		s := &p.servers[i]
		n.servers[s.Key] = ownedServer{s, owner}
		n.reals += len(s.reals)
	}
	for _, a := range p.bindings() {
		n.bound[a]++
	}
	for _, e := range p.entries {
		if n.entries[e]++; n.entries[e] == 1 {
			n.used[e.set]++
		}
	}
	for _, r := range p.outRules {
		n.out[r]++
	}
}

// remove takes away what a plan has needed.
func (n *needs) remove(owner dataplane.ServiceName, p *servicePlan) {
	if p == nil {
		return
	}
	for i := range p.servers {
		s := &p.servers[i]
		n.reals -= len(s.reals)
		if n.servers[s.Key].owner == owner && n.servers[s.Key].plannedServer == s {
			delete(n.servers, s.Key)
		}
	}
	for _, a := range p.bindings() {
		decrement(n.bound, a)
	}
	for _, e := range p.entries {
		if decrement(n.entries, e) {
			decrement(n.used, e.set)
		}
	}
	for _, r := range p.outRules {
		decrement(n.out, r)
	}
}

// subtract is the same for needs that are a difference, and may be less than
// nothing. It leaves servers as they are.
func (n *needs) subtract(p *servicePlan) {
	if p == nil {
		return
	}
	for _, a := range p.bindings() {
		n.bound[a]--
	}
	for _, e := range p.entries {
		n.entries[e]--
	}
	for _, r := range p.outRules {
		n.out[r]--
	}
}

// decrement reports whether that was the last.
func decrement[K comparable](m map[K]int, k K) bool {
	if m[k]--; m[k] > 0 {
		return false
	}
	delete(m, k)
	return true
}

// desired is the desired state of the kernel.
type desired struct {
	config   *config
	services map[dataplane.ServiceName]*servicePlan
	needs    needs
	// left are entries of ipsets that no Service in services needs and that stay
	// all the same. They count in needs.
	left map[setEntry]struct{}
}

func newDesired(c *config) *desired {
	return &desired{config: c, services: map[dataplane.ServiceName]*servicePlan{}, needs: newNeeds()}
}

// set replaces the plan of a Service; nil: there is none.
func (w *desired) set(name dataplane.ServiceName, p *servicePlan) {
	former := w.services[name]
	if p == nil {
		delete(w.services, name)
	} else {
		w.services[name] = p
	}
	w.needs.add(name, p)
	w.needs.remove(name, former)
}

// leave has entries of ipsets stay that the kernel has, and the rules that
// belong to them: they may be of Services that are not known yet. Those that stay
// already count once.
func (w *desired) leave(entries []setEntry, have *snapshot) {
	if w.left == nil {
		w.left = make(map[setEntry]struct{}, len(entries))
	}
	plan := &servicePlan{}
	for _, e := range entries {
		if _, left := w.left[e]; left {
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

// outRuleOf returns the rule that belongs to an entry that the kernel has, if it is
// one that restricts a load-balancer address and the node is in none of its ranges.
func (c *config) outRuleOf(e setEntry, have *snapshot) (outRule, bool) {
	k, ok := parseKey(e.entry)
	if !ok || e.set != c.set(setLoadBalancerFW) || have.has(c.set(setSourceIP), keyAndAddress(k, k.Addr)) {
		return "", false
	}
	return outRuleFor(k), true
}

// renounce does without entries of ipsets, and the rules that belong to them, that
// only Services need of which the kernel knows better.
func (w *desired) renounce(entries []setEntry) {
	plan := &servicePlan{entries: entries}
	for _, e := range entries {
		if k, ok := parseKey(e.entry); ok && e.set == w.config.set(setLoadBalancerFW) {
			plan.outRules = append(plan.outRules, outRuleFor(k))
		}
	}
	w.needs.remove(dataplane.ServiceName{}, plan)
}

// parseKey reads an entry of an ipset of type hash:ip,port.
func parseKey(e Entry) (Key, bool) {
	address, rest, _ := strings.Cut(string(e), ",")
	protocol, port, _ := strings.Cut(rest, ":")
	a, err := netip.ParseAddr(address)
	n, portErr := strconv.ParseUint(port, 10, 16)
	return Key{a, uint16(n), v1alpha1.Protocol(strings.ToUpper(protocol))}, err == nil && portErr == nil
}

// rules are the chains and jumps that are desired.
func (w *desired) rules() iptables.Fixed {
	return w.rulesFor(w.needs.used, w.needs.out)
}

// rulesFor are the chains and jumps for ipsets that have entries, and for rules
// that Services need.
func (w *desired) rulesFor(used map[SetName]int, out map[outRule]int) iptables.Fixed {
	set := make(map[SetName]bool, len(used))
	for name := range used {
		set[name] = true
	}
	return w.config.rules(set, slices.Sorted(maps.Keys(out)))
}

// fixedCount counts what is held of the fixed rules.
type fixedCount struct {
	chains int
	// rules are those of each table, jumps included.
	rules map[string]int
}

// count counts anew.
func (c *fixedCount) count(f iptables.Fixed) {
	c.chains, c.rules = len(f.Chains), map[string]int{}
	for _, chain := range f.Chains {
		c.rules[chain.Table] += len(chain.Rules)
	}
	for _, j := range f.Jumps {
		c.rules[j.Table]++
	}
}

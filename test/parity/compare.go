package parity

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// family is an IP family, as people call it.
type family string

const (
	ipv4 family = "IPv4"
	ipv6 family = "IPv6"
)

// The kinds of difference.
const (
	kindChain   = "chain"   // only one has the chain, or its policy differs
	kindRule    = "rule"    // only one has the rule
	kindOrder   = "order"   // both have it, in another order
	kindComment = "comment" // both have it, with another comment
)

// difference is one thing in which the rules of the two programs differ.
type difference struct {
	family family
	kind   string
	in     chainKey
	// kubeProxy and nodeproxy are what only that program has.
	kubeProxy, nodeproxy []rule
}

func (d difference) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, table %s, chain %s: %s\n", d.family, d.in.table, d.in.chain, map[string]string{
		kindChain:   "only one has the chain, or its policy differs",
		kindRule:    "rules differ",
		kindOrder:   "the order differs",
		kindComment: "comments differ",
	}[d.kind])
	for _, r := range d.kubeProxy {
		fmt.Fprintf(&b, "  kube-proxy  %s\n", r.text)
	}
	for _, r := range d.nodeproxy {
		fmt.Fprintf(&b, "  nodeproxy   %s\n", r.text)
	}
	return b.String()
}

// anyOrder are the chains in which rules of Services stand in any order:
// kube-proxy goes through its Services in no order.
func anyOrder(k chainKey) bool {
	switch k {
	case chainKey{"nat", "KUBE-SERVICES"}, chainKey{"nat", "KUBE-NODEPORTS"},
		chainKey{"filter", "KUBE-SERVICES"}, chainKey{"filter", "KUBE-EXTERNAL-SERVICES"},
		chainKey{"filter", "KUBE-NODEPORTS"}, chainKey{"filter", "KUBE-PROXY-FIREWALL"}:
		return true
	}
	return false
}

// last tells rules that must stand behind all others of a chain without order:
// the way on to the NodePorts.
func last(k chainKey, r rule) bool {
	return k == chainKey{"nat", "KUBE-SERVICES"} && r.jump() == "KUBE-NODEPORTS"
}

// compare returns how the rules of the two programs differ, sorted by chain.
func compare(f family, kubeProxy, nodeproxy rules) []difference {
	keys := map[chainKey]bool{}
	for k := range kubeProxy {
		keys[k] = true
	}
	for k := range nodeproxy {
		keys[k] = true
	}
	var out []difference
	for _, k := range slices.SortedFunc(maps.Keys(keys), func(a, b chainKey) int {
		return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(a.chain, b.chain))
	}) {
		for _, d := range compareChain(k, kubeProxy[k], nodeproxy[k]) {
			d.family, d.in = f, k
			out = append(out, d)
		}
	}
	return out
}

func compareChain(k chainKey, a, b *chain) []difference {
	if a == nil || b == nil || a.policy != b.policy {
		d := difference{kind: kindChain}
		if a != nil {
			d.kubeProxy = append([]rule{{text: ":" + k.chain + " " + a.policy}}, a.rules...)
		}
		if b != nil {
			d.nodeproxy = append([]rule{{text: ":" + k.chain + " " + b.policy}}, b.rules...)
		}
		return []difference{d}
	}
	onlyA, onlyB := without(a.rules, b.rules, rule.meaning), without(b.rules, a.rules, rule.meaning)
	if len(onlyA)+len(onlyB) > 0 {
		return []difference{{kind: kindRule, kubeProxy: onlyA, nodeproxy: onlyB}}
	}
	if !sameOrder(k, a.rules, b.rules) {
		return []difference{{kind: kindOrder, kubeProxy: a.rules, nodeproxy: b.rules}}
	}
	said := func(r rule) string { return r.meaning() + " # " + r.said }
	onlyA, onlyB = without(a.rules, b.rules, said), without(b.rules, a.rules, said)
	if len(onlyA)+len(onlyB) == 0 {
		return nil
	}
	return []difference{{kind: kindComment, kubeProxy: onlyA, nodeproxy: onlyB}}
}

// without returns the rules of a that b does not have as often.
func without(a, b []rule, what func(rule) string) []rule {
	left := map[string]int{}
	for _, r := range b {
		left[what(r)]++
	}
	var out []rule
	for _, r := range a {
		if left[what(r)]--; left[what(r)] < 0 {
			out = append(out, r)
		}
	}
	return out
}

// sameOrder compares the order of rules that are the same otherwise.
func sameOrder(k chainKey, a, b []rule) bool {
	if anyOrder(k) {
		return lastAreLast(k, a) == lastAreLast(k, b) && sameChoices(a, b)
	}
	return slices.EqualFunc(a, b, func(x, y rule) bool { return x.meaning() == y.meaning() })
}

// sameChoices compares the order of rules for the same packets: where the order
// has no meaning otherwise, the first of them decides.
func sameChoices(a, b []rule) bool {
	choices := func(list []rule) map[string][]string {
		out := map[string][]string{}
		for _, r := range list {
			key := strings.Join(r.matches, " ")
			out[key] = append(out[key], r.target)
		}
		return out
	}
	return reflect.DeepEqual(choices(a), choices(b))
}

func lastAreLast(k chainKey, list []rule) bool {
	seen := false
	for _, r := range list {
		if seen && !last(k, r) {
			return false
		}
		seen = seen || last(k, r)
	}
	return true
}

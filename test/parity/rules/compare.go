package rules

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// The kinds of difference.
const (
	KindChain   = "chain"   // only one has the chain, or its policy differs
	KindRule    = "rule"    // only one has the rule
	KindOrder   = "order"   // both have it, in another order
	KindComment = "comment" // both have it, with another comment
)

// Difference is one thing in which the rules of the two programs differ.
type Difference struct {
	// Family is the IP family, human-readable.
	Family string
	Kind   string
	In     Key
	// KubeProxy and Nodeproxy are what only that program has.
	KubeProxy, Nodeproxy []Rule
}

func (d Difference) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, table %s, chain %s: %s\n", d.Family, d.In.Table, d.In.Chain, map[string]string{
		KindChain:   "only one has the chain, or its policy differs",
		KindRule:    "rules differ",
		KindOrder:   "the order differs",
		KindComment: "comments differ",
	}[d.Kind])
	for _, r := range d.KubeProxy {
		fmt.Fprintf(&b, "  kube-proxy  %s\n", r.Text)
	}
	for _, r := range d.Nodeproxy {
		fmt.Fprintf(&b, "  nodeproxy   %s\n", r.Text)
	}
	return b.String()
}

// IPTablesOrder lists the chains of mode IPTables in which rules of Services stand in any order:
// kube-proxy goes through its Services in no order.
func IPTablesOrder(k Key) bool {
	switch k {
	case Key{"nat", "KUBE-SERVICES"}, Key{"nat", "KUBE-NODEPORTS"},
		Key{"filter", "KUBE-SERVICES"}, Key{"filter", "KUBE-EXTERNAL-SERVICES"},
		Key{"filter", "KUBE-NODEPORTS"}, Key{"filter", "KUBE-PROXY-FIREWALL"}:
		return true
	}
	return false
}

// last selects rules that must be behind all others of a chain without order:
// the way on to the NodePorts.
func last(k Key, r Rule) bool {
	return k == Key{"nat", "KUBE-SERVICES"} && r.Jump() == "KUBE-NODEPORTS"
}

// Compare returns how the rules of the two programs differ, sorted by chain.
// anyOrder selects the chains in which the order has no meaning.
func Compare(family string, kubeProxy, nodeproxy Rules, anyOrder func(Key) bool) []Difference {
	keys := map[Key]bool{}
	for k := range kubeProxy {
		keys[k] = true
	}
	for k := range nodeproxy {
		keys[k] = true
	}
	var out []Difference
	for _, k := range slices.SortedFunc(maps.Keys(keys), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Chain, b.Chain))
	}) {
		for _, d := range compareChain(k, kubeProxy[k], nodeproxy[k], anyOrder(k)) {
			d.Family, d.In = family, k
			out = append(out, d)
		}
	}
	return out
}

func compareChain(k Key, a, b *Chain, anyOrder bool) []Difference {
	if a == nil || b == nil || a.Policy != b.Policy {
		d := Difference{Kind: KindChain}
		if a != nil {
			d.KubeProxy = append([]Rule{{Text: ":" + k.Chain + " " + a.Policy}}, a.Rules...)
		}
		if b != nil {
			d.Nodeproxy = append([]Rule{{Text: ":" + k.Chain + " " + b.Policy}}, b.Rules...)
		}
		return []Difference{d}
	}
	onlyA, onlyB := without(a.Rules, b.Rules, Rule.Meaning), without(b.Rules, a.Rules, Rule.Meaning)
	if len(onlyA)+len(onlyB) > 0 {
		return []Difference{{Kind: KindRule, KubeProxy: onlyA, Nodeproxy: onlyB}}
	}
	if !sameOrder(k, a.Rules, b.Rules, anyOrder) {
		return []Difference{{Kind: KindOrder, KubeProxy: a.Rules, Nodeproxy: b.Rules}}
	}
	compared := func(r Rule) string { return r.Meaning() + " # " + r.Compared }
	onlyA, onlyB = without(a.Rules, b.Rules, compared), without(b.Rules, a.Rules, compared)
	if len(onlyA)+len(onlyB) == 0 {
		return nil
	}
	return []Difference{{Kind: KindComment, KubeProxy: onlyA, Nodeproxy: onlyB}}
}

// without returns the rules of a that b does not have as often.
func without(a, b []Rule, what func(Rule) string) []Rule {
	left := map[string]int{}
	for _, r := range b {
		left[what(r)]++
	}
	var out []Rule
	for _, r := range a {
		if left[what(r)]--; left[what(r)] < 0 {
			out = append(out, r)
		}
	}
	return out
}

// sameOrder compares the order of rules that are the same otherwise.
func sameOrder(k Key, a, b []Rule, anyOrder bool) bool {
	if anyOrder {
		return lastAreLast(k, a) == lastAreLast(k, b) && sameChoices(a, b)
	}
	return slices.EqualFunc(a, b, func(x, y Rule) bool { return x.Meaning() == y.Meaning() })
}

// sameChoices compares the order of rules for the same packets: where the order
// has no meaning otherwise, the first of them decides.
func sameChoices(a, b []Rule) bool {
	choices := func(list []Rule) map[string][]string {
		out := map[string][]string{}
		for _, r := range list {
			key := strings.Join(r.Matches, " ")
			out[key] = append(out[key], r.Target)
		}
		return out
	}
	return reflect.DeepEqual(choices(a), choices(b))
}

func lastAreLast(k Key, list []Rule) bool {
	seen := false
	for _, r := range list {
		if seen && !last(k, r) {
			return false
		}
		seen = seen || last(k, r)
	}
	return true
}

package parity

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/test/parity/rules"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// difference is one object that differs between the two programs.
type difference struct {
	what                 string
	kubeProxy, nodeproxy []string // what only that program has
}

func (d difference) String() string {
	var b strings.Builder
	fmt.Fprintln(&b, d.what)
	for _, line := range d.kubeProxy {
		fmt.Fprintf(&b, "  kube-proxy  %s\n", line)
	}
	for _, line := range d.nodeproxy {
		fmt.Fprintf(&b, "  nodeproxy   %s\n", line)
	}
	return b.String()
}

// compare returns how the two states differ.
func compare(kubeProxy, nodeproxy *state) []difference {
	var out []difference
	lines := func(what string, a, b []string) {
		onlyA, onlyB := without(a, b), without(b, a)
		if len(onlyA)+len(onlyB) > 0 {
			out = append(out, difference{what, onlyA, onlyB})
		}
	}
	for _, key := range names(kubeProxy.servers, nodeproxy.servers) {
		lines("virtual server "+key, kubeProxy.servers[key].lines(), nodeproxy.servers[key].lines())
	}
	for _, name := range names(kubeProxy.sets, nodeproxy.sets) {
		lines("set "+name, kubeProxy.sets[name].lines(), nodeproxy.sets[name].lines())
	}
	for _, f := range worlds.Families() {
		for _, d := range rules.Compare(string(f), kubeProxy.rules[f], nodeproxy.rules[f], anyOrder) {
			out = append(out, difference{what: strings.TrimSpace(d.String())})
		}
	}
	lines("device, timeouts, sysctls", kubeProxy.facts, nodeproxy.facts)
	return out
}

// anyOrder reports whether the order of a chain's rules is irrelevant: it has one rule for each
// address, and no packet matches two of them.
func anyOrder(k rules.Key) bool {
	return k == rules.Key{Table: "filter", Chain: "KUBE-IPVS-OUT-FILTER"}
}

func names[T any](a, b map[string]T) []string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

func (v *server) lines() []string {
	if v == nil {
		return nil
	}
	return append([]string{v.options}, v.reals...)
}

func (v *set) lines() []string {
	if v == nil {
		return nil
	}
	return append([]string{v.kind}, v.entries...)
}

// without returns the lines of a that b does not have.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(line string) bool { return slices.Contains(b, line) })
}

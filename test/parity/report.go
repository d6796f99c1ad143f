package parity

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/test/parity/rules"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// ownersOf returns the Services of chains: a chain's name ends in a hash of the Service's
// name, port name and protocol.
func ownersOf(w *worlds.World) map[string]string {
	out := map[string]string{}
	for _, s := range w.Services {
		for _, p := range s.Object.Spec.Ports {
			name := s.Name()
			if p.Name != "" {
				name += ":" + p.Name
			}
			sum := sha256.Sum256([]byte(name + strings.ToLower(string(p.Protocol))))
			hash := base32.StdEncoding.EncodeToString(sum[:])[:16]
			for _, prefix := range servicePrefixes() {
				out[prefix+hash] = s.Name()
			}
		}
	}
	return out
}

// serviceOf returns the Service that a rule belongs to, by the chains that it
// is in and leads to, or by its comment; "" for rules of no Service.
func serviceOf(owners map[string]string, k rules.Key, r rules.Rule) string {
	for _, c := range []string{k.Chain, r.Jump()} {
		if name := owners[c]; name != "" {
			return name
		}
	}
	word, _, _ := strings.Cut(r.Comment, " ")
	if namespace, name, ok := strings.Cut(word, "/"); ok {
		name, _, _ = strings.Cut(name, ":")
		return namespace + "/" + name
	}
	return ""
}

// ownEndpoints adds the chains of endpoints, which other chains of the Service
// lead to.
func ownEndpoints(owners map[string]string, r rules.Rules) {
	for k, c := range r {
		owner := owners[k.Chain]
		for _, one := range c.Rules {
			if owner != "" && strings.HasPrefix(one.Jump(), "KUBE-SEP-") {
				owners[one.Jump()] = owner
			}
		}
	}
}

// report prints all that is needed to understand differences: what differs, the
// Services concerned, and all rules that both have for them.
func report(w *worlds.World, differences []rules.Difference, now saved) string {
	var b strings.Builder
	owners := ownersOf(w)
	parsed := map[worlds.Family][2]rules.Rules{}
	for _, f := range worlds.Families() {
		reference, err := rules.Parse(now.reference[f])
		tested, err2 := rules.Parse(now.tested[f])
		if err != nil || err2 != nil {
			continue // look has reported
		}
		ownEndpoints(owners, reference)
		ownEndpoints(owners, tested)
		parsed[f] = [2]rules.Rules{reference, tested}
	}
	concerned := map[string]bool{}
	fmt.Fprintf(&b, "%d chains differ:\n", len(differences))
	for i, d := range differences {
		if i < 20 {
			b.WriteString(d.String())
		}
		for _, r := range slices.Concat(d.KubeProxy, d.Nodeproxy) {
			if name := serviceOf(owners, d.In, r); name != "" {
				concerned[name] = true
			}
		}
	}
	names := slices.Sorted(maps.Keys(concerned))
	fmt.Fprintf(&b, "\nServices concerned: %s\n", strings.Join(names, ", "))
	for _, name := range names[:min(len(names), 3)] {
		w.Describe(&b, name)
		for _, f := range worlds.Families() {
			for i, who := range []string{"kube-proxy", "nodeproxy"} {
				fmt.Fprintf(&b, "\nRules of %s for %s, %s:\n", who, name, f)
				writeRules(&b, owners, name, parsed[f][i])
			}
		}
	}
	return b.String()
}

func writeRules(b *strings.Builder, owners map[string]string, name string, r rules.Rules) {
	for _, k := range slices.SortedFunc(maps.Keys(r), func(x, y rules.Key) int { return strings.Compare(x.String(), y.String()) }) {
		for _, one := range r[k].Rules {
			if serviceOf(owners, k, one) == name {
				fmt.Fprintf(b, "  %s %s\n", k.Table, one.Text)
			}
		}
	}
}

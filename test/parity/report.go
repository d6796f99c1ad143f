package parity

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// owners tells whose chains are: a chain's name ends in a hash of the Service's
// name, port name and protocol.
func (w *world) owners() map[string]string {
	out := map[string]string{}
	for _, s := range w.services {
		for _, p := range s.object.Spec.Ports {
			name := s.name()
			if p.Name != "" {
				name += ":" + p.Name
			}
			sum := sha256.Sum256([]byte(name + strings.ToLower(string(p.Protocol))))
			hash := base32.StdEncoding.EncodeToString(sum[:])[:16]
			for _, prefix := range servicePrefixes() {
				out[prefix+hash] = s.name()
			}
		}
	}
	return out
}

// serviceOf returns the Service that a rule belongs to, by the chains that it
// is in and leads to, or by its comment; "" for rules of no Service.
func serviceOf(owners map[string]string, k chainKey, r rule) string {
	for _, c := range []string{k.chain, r.jump()} {
		if name := owners[c]; name != "" {
			return name
		}
	}
	word, _, _ := strings.Cut(r.comment, " ")
	if namespace, name, ok := strings.Cut(word, "/"); ok {
		name, _, _ = strings.Cut(name, ":")
		return namespace + "/" + name
	}
	return ""
}

// ownEndpoints adds the chains of endpoints, which other chains of the Service
// lead to.
func ownEndpoints(owners map[string]string, r rules) {
	for k, c := range r {
		owner := owners[k.chain]
		for _, one := range c.rules {
			if owner != "" && strings.HasPrefix(one.jump(), "KUBE-SEP-") {
				owners[one.jump()] = owner
			}
		}
	}
}

// report tells all that is needed to understand differences: what differs, the
// Services concerned, and all rules that both have for them.
func (w *world) report(differences []difference, now saved) string {
	var b strings.Builder
	owners := w.owners()
	parsed := map[family][2]rules{}
	for _, f := range families() {
		reference, err := parse(now.reference[f])
		tested, err2 := parse(now.tested[f])
		if err != nil || err2 != nil {
			continue // look has told
		}
		ownEndpoints(owners, reference)
		ownEndpoints(owners, tested)
		parsed[f] = [2]rules{reference, tested}
	}
	concerned := map[string]bool{}
	fmt.Fprintf(&b, "%d chains differ:\n", len(differences))
	for i, d := range differences {
		if i < 20 {
			b.WriteString(d.String())
		}
		for _, r := range slices.Concat(d.kubeProxy, d.nodeproxy) {
			if name := serviceOf(owners, d.in, r); name != "" {
				concerned[name] = true
			}
		}
	}
	names := slices.Sorted(maps.Keys(concerned))
	fmt.Fprintf(&b, "\nServices concerned: %s\n", strings.Join(names, ", "))
	for _, name := range names[:min(len(names), 3)] {
		w.describe(&b, name)
		for _, f := range families() {
			for i, who := range []string{"kube-proxy", "nodeproxy"} {
				fmt.Fprintf(&b, "\nRules of %s for %s, %s:\n", who, name, f)
				writeRules(&b, owners, name, parsed[f][i])
			}
		}
	}
	return b.String()
}

func writeRules(b *strings.Builder, owners map[string]string, name string, r rules) {
	for _, k := range slices.SortedFunc(maps.Keys(r), func(x, y chainKey) int { return strings.Compare(x.String(), y.String()) }) {
		for _, one := range r[k].rules {
			if serviceOf(owners, k, one) == name {
				fmt.Fprintf(b, "  %s %s\n", k.table, one.text)
			}
		}
	}
}

// describe writes a Service and its slices as they are asked for.
func (w *world) describe(b *strings.Builder, name string) {
	s := w.find(name)
	if s == nil {
		fmt.Fprintf(b, "\n%s does not exist (any more).\n", name)
		return
	}
	if s.gone {
		fmt.Fprintf(b, "\n%s does not exist any more; its slices do.\n", name)
	}
	objects := []any{s.object}
	for _, sl := range s.slices {
		objects = append(objects, sl.object(s.endpoints))
	}
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			text = []byte(err.Error())
		}
		fmt.Fprintf(b, "---\n%s", text)
	}
}

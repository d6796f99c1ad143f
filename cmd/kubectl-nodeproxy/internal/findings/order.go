package findings

import (
	"cmp"
	"slices"
	"strings"
)

// Order puts findings below those that explain them, merges those that are alike on
// several nodes, and sorts them.
func Order(found []Finding) []Finding {
	byKey := map[string]int{}
	for i := range found {
		if found[i].Key != "" {
			byKey[found[i].Key] = i
		}
	}
	parent := slices.Repeat([]int{-1}, len(found))
	for i := range found {
		for _, cause := range found[i].Causes {
			if p, ok := byKey[cause]; ok && p != i && !within(parent, p, i) {
				parent[i] = p
				break
			}
		}
	}
	var under func(of int) []Finding
	under = func(of int) []Finding {
		var out []Finding
		for i := range found {
			if parent[i] == of {
				f := found[i]
				f.Consequences = under(i)
				out = append(out, f)
			}
		}
		return sorted(alike(out))
	}
	return under(-1)
}

// within reports whether i already explains p, in which case p cannot explain i.
func within(parent []int, p, i int) bool {
	for ; p >= 0; p = parent[p] {
		if p == i {
			return true
		}
	}
	return false
}

// alike merges findings that differ only in the node.
func alike(found []Finding) []Finding {
	type likeness [6]string
	seen := map[likeness]int{}
	var out []Finding
	for _, f := range found {
		key := likeness{string(f.Severity), f.Reason, f.Service, f.Policy, f.Message, f.Remedy}
		i, ok := seen[key]
		if !ok {
			seen[key] = len(out)
			f.Nodes = slices.Clone(f.Nodes)
			out = append(out, f)
			continue
		}
		one := &out[i]
		one.Nodes = append(one.Nodes, f.Nodes...)
		one.Consequences = sorted(alike(append(one.Consequences, f.Consequences...)))
		if !f.Since.IsZero() && (one.Since.IsZero() || f.Since.Before(&one.Since)) {
			one.Since = f.Since
		}
	}
	for i := range out {
		slices.Sort(out[i].Nodes)
		out[i].Nodes = slices.Compact(out[i].Nodes)
		switch remedy := out[i].RemedyOn; {
		case remedy == nil:
		case len(out[i].Nodes) == 1:
			out[i].Remedy = remedy(out[i].Nodes[0])
		default:
			out[i].Remedy = remedy("")
		}
	}
	return out
}

// sorted puts problems before warnings, and then first what explains most.
func sorted(found []Finding) []Finding {
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(a.Severity, b.Severity), // Problem, then Warning
			cmp.Compare(len(flat(b.Consequences)), len(flat(a.Consequences))),
			cmp.Compare(slices.Index(checks, a.Check), slices.Index(checks, b.Check)),
			cmp.Compare(a.Service, b.Service),
			cmp.Compare(strings.Join(a.Nodes, ","), strings.Join(b.Nodes, ",")),
			cmp.Compare(a.Policy, b.Policy),
			cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Message, b.Message),
		)
	})
	return found
}

// flat returns findings together with all their consequences.
func flat(found []Finding) []Finding {
	var out []Finding
	for i := range found {
		out = append(append(out, found[i]), flat(found[i].Consequences)...)
	}
	return out
}

// Tally counts findings with their consequences.
func Tally(found []Finding) (problems, warnings int) {
	for _, f := range flat(found) {
		if f.Severity == Problem {
			problems++
		} else {
			warnings++
		}
	}
	return problems, warnings
}

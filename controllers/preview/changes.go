package preview

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Names of the rendered kinds.
const (
	kindNodeRules    = "NodeProxyRules"
	kindServiceRules = "ServiceProxyRules"
)

// Changes are the differences between rendered and stored objects.
type Changes struct {
	nodes, services []change // by name
}

// change is an object that would change; nil: it does not exist.
type change struct {
	name          string
	before, after *object
}

// Compare returns what would be written: differences in what the controllers render. The rest of a
// stored object, such as its status and annotations, does not count.
func Compare(stored *Objects, result *Result) *Changes {
	return &Changes{
		nodes:    changes(stored.NodeRules, result.Nodes, func(r *v1alpha1.NodeProxyRules) (string, *object) { return r.Name, nodeObject(r) }),
		services: changes(stored.ServiceRules, result.Services, func(r *v1alpha1.ServiceProxyRules) (string, *object) { return r.Name, serviceObject(r) }),
	}
}

func changes[T any](before, after []T, printed func(*T) (string, *object)) []change {
	pairs := make(map[string]change, len(after))
	for i := range before {
		name, o := printed(&before[i])
		pairs[name] = change{name: name, before: o}
	}
	for i := range after {
		name, o := printed(&after[i])
		pairs[name] = change{name: name, before: pairs[name].before, after: o}
	}
	maps.DeleteFunc(pairs, func(_ string, c change) bool { return equality.Semantic.DeepEqual(c.before, c.after) })
	return slices.SortedFunc(maps.Values(pairs), func(a, b change) int { return cmp.Compare(a.name, b.name) })
}

// Any reports whether anything would change.
func (c *Changes) Any() bool { return len(c.nodes)+len(c.services) > 0 }

// Summary counts the changes, in one line.
func (c *Changes) Summary() string {
	count := func(of []change, counts func(change) bool) (n int) {
		for _, one := range of {
			if counts(one) {
				n++
			}
		}
		return n
	}
	changed := func(c change) bool { return c.before != nil && c.after != nil }
	created := func(c change) bool { return c.before == nil }
	removed := func(c change) bool { return c.after == nil }
	parts := []string{both(count(c.nodes, changed), count(c.services, changed)) + " would change"}
	for _, what := range []struct {
		counts func(change) bool
		done   string
	}{{created, "created"}, {removed, "removed"}} {
		if nodes, services := count(c.nodes, what.counts), count(c.services, what.counts); nodes+services > 0 {
			parts = append(parts, both(nodes, services)+" would be "+what.done)
		}
	}
	return strings.Join(parts, ", ")
}

func both(nodes, services int) string {
	return fmt.Sprintf("%d %s and %d %s", nodes, kindNodeRules, services, kindServiceRules)
}

// Write writes the changes as a unified diff, nodes first.
func (c *Changes) Write(w io.Writer) error {
	for _, one := range slices.Concat(c.nodes, c.services) {
		if err := one.write(w); err != nil {
			return err
		}
	}
	return nil
}

func (c *change) write(w io.Writer) error {
	diff := difflib.UnifiedDiff{FromFile: "/dev/null", ToFile: "/dev/null", Context: 3}
	for _, side := range []struct {
		*object
		where string
		file  *string
		lines *[]string
	}{{c.before, "stored", &diff.FromFile, &diff.A}, {c.after, "rendered", &diff.ToFile, &diff.B}} {
		if side.object == nil {
			continue
		}
		text, err := side.text()
		if err != nil {
			return err
		}
		*side.file, *side.lines = side.where+"/"+side.Kind+"/"+c.name, strings.SplitAfter(strings.TrimSuffix(string(text), "\n"), "\n")
		(*side.lines)[len(*side.lines)-1] += "\n"
	}
	if err := difflib.WriteUnifiedDiff(w, diff); err != nil {
		return fmt.Errorf("write the difference of %s: %w", c.name, err)
	}
	return nil
}

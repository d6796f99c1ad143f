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
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Names of the rendered kinds.
const (
	kindNodeRules    = "NodeProxyRules"
	kindServiceRules = "ServiceProxyRules"
)

// Changes are the differences between rendered and stored objects: nodes first, each kind by name.
type Changes []change

// change is an object that would change; nil: it does not exist.
type change struct{ before, after *object }

// Compare returns what would be written: differences in what the controllers render. The rest of a
// stored object, such as its status and annotations, does not count.
func Compare(stored *Objects, result *Result) Changes {
	return slices.Concat(changes(stored.NodeRules, result.Nodes, nodeObject), changes(stored.ServiceRules, result.Services, serviceObject))
}

func changes[T any](before, after []T, printed func(*T) *object) Changes {
	byName := make(map[string]change, len(after))
	for i := range before {
		o := printed(&before[i])
		byName[o.Metadata.Name] = change{before: o}
	}
	for i := range after {
		o := printed(&after[i])
		byName[o.Metadata.Name] = change{before: byName[o.Metadata.Name].before, after: o}
	}
	maps.DeleteFunc(byName, func(_ string, c change) bool { return equality.Semantic.DeepEqual(c.before, c.after) })
	return slices.SortedFunc(maps.Values(byName), func(a, b change) int { return cmp.Compare(a.object().Metadata.Name, b.object().Metadata.Name) })
}

// object returns the object as rendered, else as stored.
func (c change) object() *object { return cmp.Or(c.after, c.before) }

// Summary counts the changes, in one line.
func (c Changes) Summary() string {
	changed, created, removed := map[string]int{}, map[string]int{}, map[string]int{} // by kind
	for _, one := range c {
		switch kind := one.object().Kind; {
		case one.before == nil:
			created[kind]++
		case one.after == nil:
			removed[kind]++
		default:
			changed[kind]++
		}
	}
	both := func(count map[string]int, would string) string {
		return fmt.Sprintf("%d %s and %d %s would %s", count[kindNodeRules], kindNodeRules, count[kindServiceRules], kindServiceRules, would)
	}
	parts := []string{both(changed, "change")}
	if len(created) > 0 {
		parts = append(parts, both(created, "be created"))
	}
	if len(removed) > 0 {
		parts = append(parts, both(removed, "be removed"))
	}
	return strings.Join(parts, ", ")
}

// Write writes the changes as a unified diff.
func (c Changes) Write(w io.Writer) error {
	for _, one := range c {
		diff := difflib.UnifiedDiff{Context: 3}
		var err error
		if diff.FromFile, diff.A, err = one.before.lines("stored"); err != nil {
			return err
		}
		if diff.ToFile, diff.B, err = one.after.lines("rendered"); err != nil {
			return err
		}
		if err := difflib.WriteUnifiedDiff(w, diff); err != nil {
			return fmt.Errorf("write the difference of %s: %w", one.object().Metadata.Name, err)
		}
	}
	return nil
}

// object is the printed form of a rendered object: what the controllers decide about it.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec any `json:"spec"`
}

func newObject(kind, name string, spec any) *object {
	o := &object{APIVersion: v1alpha1.GroupVersion.String(), Kind: kind, Spec: spec}
	o.Metadata.Name = name
	return o
}

func nodeObject(r *v1alpha1.NodeProxyRules) *object { return newObject(kindNodeRules, r.Name, &r.Spec) }

func serviceObject(r *v1alpha1.ServiceProxyRules) *object {
	return newObject(kindServiceRules, r.Name, &r.Spec)
}

func (o *object) text() (string, error) {
	text, err := yaml.Marshal(o)
	if err != nil {
		return "", fmt.Errorf("encode %s %s: %w", o.Kind, o.Metadata.Name, err)
	}
	return string(text), nil
}

// lines returns one side of a diff. The object is nil if it does not exist there.
func (o *object) lines(directory string) (file string, lines []string, err error) {
	if o == nil {
		return "/dev/null", nil, nil
	}
	text, err := o.text()
	return directory + "/" + o.Kind + "/" + o.Metadata.Name, difflib.SplitLines(strings.TrimSuffix(text, "\n")), err
}

// Write writes the rendered objects in YAML, nodes first, each sorted by name. The output can be
// read again as stored objects.
func (r *Result) Write(w io.Writer) error {
	for _, one := range Compare(&Objects{}, r) { // all of them
		text, err := one.after.text()
		if err != nil {
			return err
		}
		if _, err = fmt.Fprintf(w, "---\n%s", text); err != nil {
			return err
		}
	}
	return nil
}

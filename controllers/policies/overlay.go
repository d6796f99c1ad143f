package policies

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Merged is what the policies result in that select some objects.
type Merged struct {
	// Matching are the policies that select the objects, and Policies those of them that set a
	// field, each the strongest first.
	Matching, Policies []string
	// Owners are the names of the policies that set each field, by its path in JSON, such as
	// "ipvs.scheduler".
	Owners map[string]string
	// Overridden are, for each policy, the fields that it would set differently, with the name of
	// the one that sets them.
	Overridden map[string]map[string]string
}

func newMerged() Merged {
	return Merged{Owners: map[string]string{}, Overridden: map[string]map[string]string{}}
}

// add adds a policy below the others. Fields may be nil.
func (m *Merged) add(name string, into, fields any) {
	m.Matching = append(m.Matching, name)
	if reflect.ValueOf(fields).IsNil() {
		return
	}
	before := len(m.Owners)
	if lost := m.overlay(name, into, fields); len(lost) > 0 {
		m.Overridden[name] = lost
	}
	if len(m.Owners) > before {
		m.Policies = append(m.Policies, name)
	}
}

// overlay sets the fields that have no owner yet, and returns those that others set differently.
// Nil pointers and slices set nothing. Both point to structs of the same type; values of the lower
// one are shared.
func (m *Merged) overlay(name string, into, lower any) (overridden map[string]string) {
	overridden = map[string]string{}
	var merge func(parent string, into, lower reflect.Value)
	merge = func(parent string, into, lower reflect.Value) {
		for i := range lower.NumField() {
			from, to := lower.Field(i), into.Field(i)
			if from.IsNil() { // all are pointers or slices, see TestFieldsCanBeAbsent
				continue
			}
			path := pathOf(parent, lower.Type().Field(i))
			owner, found := m.Owners[path]
			switch {
			case nested(from.Type()):
				if to.IsNil() {
					to.Set(reflect.New(to.Type().Elem()))
				}
				merge(path, to.Elem(), from.Elem())
			case !found:
				to.Set(from)
				m.Owners[path] = name
			case !reflect.DeepEqual(to.Interface(), from.Interface()):
				overridden[path] = owner
			}
		}
	}
	merge("", reflect.ValueOf(into).Elem(), reflect.ValueOf(lower).Elem())
	return overridden
}

// differing returns the paths of the fields in which two structs of one type differ. An empty slice
// equals nil.
func differing(a, b any) (out []string) {
	var compare func(parent string, a, b reflect.Value)
	compare = func(parent string, a, b reflect.Value) {
		for i := range a.NumField() {
			x, y := a.Field(i), b.Field(i)
			path := pathOf(parent, a.Type().Field(i))
			switch {
			case x.Kind() == reflect.Slice && x.Len()+y.Len() == 0:
			case nested(x.Type()) && !x.IsNil() && !y.IsNil():
				compare(path, x.Elem(), y.Elem())
			case !reflect.DeepEqual(x.Interface(), y.Interface()):
				out = append(out, path)
			}
		}
	}
	compare("", reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem())
	return out
}

// whole is a struct that policies set and override as a whole, so that it counts as one field.
type whole interface{ SetAsWhole() }

// nested reports whether a field contains fields that policies set one by one.
func nested(t reflect.Type) bool {
	return t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct && !t.Implements(reflect.TypeFor[whole]())
}

func pathOf(parent string, field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return strings.TrimPrefix(parent+"."+name, ".")
}

// resolver merges policies. Objects that the same policies select share one result.
type resolver[P, R any] struct {
	policies []P // the strongest first

	mu    sync.Mutex
	known map[string]R // guarded by mu; by a bit for each policy
}

func newResolver[P, R any](policies []P, rank func(P) (priority int32, name string)) *resolver[P, R] {
	sorted := slices.SortedFunc(slices.Values(policies), func(a, b P) int {
		priorityA, nameA := rank(a)
		priorityB, nameB := rank(b)
		return cmp.Or(cmp.Compare(priorityB, priorityA), cmp.Compare(nameA, nameB))
	})
	return &resolver[P, R]{policies: sorted, known: map[string]R{}}
}

// resolve calls merge for combinations of policies that are not known yet.
func (r *resolver[P, R]) resolve(selects func(P) bool, merge func([]P) R) R {
	matching := make([]byte, (len(r.policies)+7)/8)
	for i, p := range r.policies {
		if selects(p) {
			matching[i/8] |= 1 << (i % 8)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out, found := r.known[string(matching)]
	if !found {
		out = merge(r.selecting(selects))
		r.known[string(matching)] = out
	}
	return out
}

// selecting returns the policies that select an object, the strongest first.
func (r *resolver[P, R]) selecting(selects func(P) bool) []P {
	return slices.DeleteFunc(slices.Clone(r.policies), func(p P) bool { return !selects(p) })
}

// Selector parses a selector at a path. The API denies most mistakes itself; this finds the others,
// such as an impossible label in matchLabels.
func Selector(s v1alpha1.LabelSelector, at *field.Path) (labels.Selector, field.ErrorList) {
	var errs field.ErrorList
	all := &metav1.LabelSelector{MatchLabels: s.MatchLabels}
	for key, value := range s.MatchLabels {
		errs = append(errs, validation.ValidateLabels(map[string]string{key: value}, at.Child("matchLabels").Key(key))...)
	}
	for i, e := range s.MatchExpressions {
		r := metav1.LabelSelectorRequirement{Key: e.Key, Operator: metav1.LabelSelectorOperator(e.Operator), Values: e.Values}
		all.MatchExpressions = append(all.MatchExpressions, r)
		errs = append(errs, validation.ValidateLabelSelectorRequirement(r, validation.LabelSelectorValidationOptions{}, at.Child("matchExpressions").Index(i))...)
	}
	selector, err := metav1.LabelSelectorAsSelector(all)
	if err != nil && len(errs) == 0 {
		errs = append(errs, field.Invalid(at, s, err.Error()))
	}
	if len(errs) > 0 {
		slices.SortFunc(errs, func(a, b *field.Error) int { return cmp.Compare(a.Field, b.Field) })
		return nil, errs
	}
	return selector, nil
}

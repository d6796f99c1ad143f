package policies

import (
	"reflect"
	"strings"
)

// layers merges structs of one type, the strongest first: each field is set by the first layer that
// has it.
type layers struct {
	// whole are the paths of structs that count as one field.
	whole map[string]bool
	// owners are the names of the layers that set each field, by its path in JSON, such as
	// "ipvs.scheduler".
	owners map[string]string
}

// add adds a struct below, and returns which of its fields others set differently. Nil pointers and
// slices set nothing. Both point to structs of the same type; values of the lower one are shared.
func (l *layers) add(name string, into, lower any) (overridden map[string]string) {
	overridden = map[string]string{}
	l.merge(name, "", reflect.ValueOf(into).Elem(), reflect.ValueOf(lower).Elem(), overridden)
	return overridden
}

func (l *layers) merge(name, parent string, into, lower reflect.Value, overridden map[string]string) {
	for i := range lower.NumField() {
		from, to := lower.Field(i), into.Field(i)
		if from.IsNil() { // all are pointers or slices, see TestFieldsCanBeAbsent
			continue
		}
		path := pathOf(parent, lower.Type().Field(i))
		if nested(from.Type()) && !l.whole[path] {
			if to.IsNil() {
				to.Set(reflect.New(to.Type().Elem()))
			}
			l.merge(name, path, to.Elem(), from.Elem(), overridden)
			continue
		}
		if owner, found := l.owners[path]; found {
			if !reflect.DeepEqual(to.Interface(), from.Interface()) {
				overridden[path] = owner
			}
			continue
		}
		to.Set(from)
		l.owners[path] = name
	}
}

// differing returns the paths of the fields in which two structs of one type differ. An empty slice
// is none.
func differing(a, b any, whole map[string]bool) []string {
	var out []string
	compare("", reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem(), whole, &out)
	return out
}

func compare(parent string, a, b reflect.Value, whole map[string]bool, out *[]string) {
	for i := range a.NumField() {
		x, y := a.Field(i), b.Field(i)
		path := pathOf(parent, a.Type().Field(i))
		switch {
		case x.Kind() == reflect.Slice && x.Len()+y.Len() == 0:
		case nested(x.Type()) && !whole[path] && !x.IsNil() && !y.IsNil():
			compare(path, x.Elem(), y.Elem(), whole, out)
		case !reflect.DeepEqual(x.Interface(), y.Interface()):
			*out = append(*out, path)
		}
	}
}

// nested reports whether a field contains fields.
func nested(t reflect.Type) bool {
	return t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct
}

func pathOf(parent string, field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return strings.TrimPrefix(parent+"."+name, ".")
}

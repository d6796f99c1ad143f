package policies

import (
	"reflect"
	"strings"
)

// layers puts structs of one type on top of each other, the strongest first: each
// field is set by the first layer that has it.
type layers struct {
	// whole are the paths of structs that are one field, not several.
	whole map[string]bool
	// owners are the names of the layers that set each field, by its path in JSON,
	// such as "ipvs.scheduler".
	owners map[string]string
}

// add puts a struct under what is there, and returns by whom fields of it are set
// otherwise. Pointers and slices that are nil set nothing. Both point to structs of the
// same type; the lower one lends its values.
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

// differing are the paths of the fields in which two structs of one type differ. A
// slice without entries is none.
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

// nested reports whether a field holds fields.
func nested(t reflect.Type) bool {
	return t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct
}

func pathOf(parent string, field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return strings.TrimPrefix(parent+"."+name, ".")
}

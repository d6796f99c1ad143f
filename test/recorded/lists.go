package recorded

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// keyedLists are the lists whose elements a patch changes one by one: there it has a map instead. Its keys
// are the values of the fields that identify an element, in the order of which the list is. Any other list
// is replaced as a whole.
var keyedLists = []struct {
	in, field string
	by        []string
}{
	{"status", "conditions", []string{"type"}},
	{"spec", "localEndpoints", []string{"namespace", "name"}},
}

const keySeparator = "/" // in no value of these fields

// keyed returns an object with maps instead of lists, for a merge patch.
func keyed(o object) object {
	o = maps.Clone(o)
	for _, l := range keyedLists {
		in := maps.Clone(child(o, l.in))
		if in == nil {
			continue
		}
		o[l.in] = in
		list, is := in[l.field].([]any)
		if !is {
			continue
		}
		all := map[string]any{}
		for _, element := range list {
			element, is := element.(map[string]any)
			if !is {
				break
			}
			rest := maps.Clone(element)
			var key []string
			for _, field := range l.by {
				key = append(key, fmt.Sprint(element[field]))
				delete(rest, field)
			}
			all[strings.Join(key, keySeparator)] = rest
		}
		if len(all) != len(list) || len(all) == 0 {
			continue // not what it seems
		}
		in[l.field] = all
	}
	return o
}

// listed is the inverse of keyed.
func listed(o object) object {
	for _, l := range keyedLists {
		all, is := child(o, l.in)[l.field].(map[string]any)
		if !is {
			continue
		}
		var list []any
		for _, key := range slices.Sorted(maps.Keys(all)) {
			element, is := all[key].(map[string]any)
			if !is {
				element = map[string]any{}
			}
			for i, value := range strings.SplitN(key, keySeparator, len(l.by)) {
				element[l.by[i]] = value
			}
			list = append(list, element)
		}
		in := child(o, l.in)
		if in[l.field] = list; len(list) == 0 {
			drop(in, l.field)
		}
	}
	return o
}

// sortLists brings the lists in the order of their keys.
func sortLists(o object) {
	for _, l := range keyedLists {
		list, is := child(o, l.in)[l.field].([]any)
		if !is {
			continue
		}
		slices.SortStableFunc(list, func(a, b any) int {
			for _, field := range l.by {
				x, _ := a.(map[string]any)
				y, _ := b.(map[string]any)
				if c := strings.Compare(fmt.Sprint(x[field]), fmt.Sprint(y[field])); c != 0 {
					return c
				}
			}
			return 0
		})
	}
}

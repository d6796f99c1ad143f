package dataplane

import "slices"

// Once tracks which values have been seen, in linear time. It costs next to nothing for the few
// that a Service nearly always has.
type Once[T comparable] struct {
	few  []T
	many map[T]struct{}
}

// fewest is how many values are found faster in a list.
const fewest = 16

// First reports whether x is new, and notes it.
func (o *Once[T]) First(x T) bool {
	if o.many != nil {
		_, twice := o.many[x]
		o.many[x] = struct{}{}
		return !twice
	}
	if slices.Contains(o.few, x) {
		return false
	}
	o.few = append(o.few, x)
	if len(o.few) > fewest {
		o.many = make(map[T]struct{}, 2*len(o.few))
		for _, y := range o.few {
			o.many[y] = struct{}{}
		}
	}
	return true
}

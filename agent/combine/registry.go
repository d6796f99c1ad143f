package combine

import (
	"container/heap"

	"k8s.io/apimachinery/pkg/util/sets"
)

// Registry has the claimants of each address, port and protocol, nearly always one.
type Registry[T Claimant[T]] map[Claim]claimants[T]

// asking is a claimant of one claim.
type asking[T Claimant[T]] struct {
	claimant T
	rank     Rank
}

func (a asking[T]) precedes(o asking[T]) bool {
	if a.rank != o.rank {
		return a.rank > o.rank
	}
	return a.rank != Yielding && a.claimant.Precedes(o.claimant)
}

// claimants are those of one claim.
type claimants[T Claimant[T]] struct {
	best   asking[T]
	others *contest[T] // nil: none
}

// contest is a heap, by precedence. It finds each claimant, whose precedence may have changed when it
// is removed.
type contest[T Claimant[T]] struct {
	heap  []asking[T]
	index map[asking[T]]int
}

// Len implements heap.Interface.
func (c *contest[T]) Len() int { return len(c.heap) }

// Less implements heap.Interface.
func (c *contest[T]) Less(i, j int) bool { return c.heap[i].precedes(c.heap[j]) }

// Swap implements heap.Interface.
func (c *contest[T]) Swap(i, j int) {
	c.heap[i], c.heap[j] = c.heap[j], c.heap[i]
	c.index[c.heap[i]], c.index[c.heap[j]] = i, j
}

// Push implements heap.Interface.
func (c *contest[T]) Push(x any) {
	one := x.(asking[T])
	c.index[one] = len(c.heap)
	c.heap = append(c.heap, one)
}

// Pop implements heap.Interface.
func (c *contest[T]) Pop() any {
	last := len(c.heap) - 1
	one := c.heap[last]
	delete(c.index, one)
	c.heap[last] = asking[T]{}
	c.heap = c.heap[:last]
	return one
}

// Set replaces the claims of a claimant and returns the others that this may affect. A change of
// ranks or precedence is one, too; since the last Set, only this claimant's may have changed.
func (r Registry[T]) Set(claimant T, before, after []Asked) []T {
	concerned := sets.Set[T]{}
	for _, yielding := range []bool{false, true} { // a claim with both ranks may be in one heap; yielding ones have no order
		for _, asked := range before {
			if (asked.Rank == Yielding) == yielding {
				r.remove(asking[T]{claimant, asked.Rank}, asked.Claim, concerned)
			}
		}
	}
	for _, asked := range after {
		r.add(asking[T]{claimant, asked.Rank}, asked.Claim, concerned)
	}
	return concerned.Delete(claimant).UnsortedList()
}

// add adds a claim, once. If it is the best, it affects those that had it: the former best, or all
// that yield.
func (r Registry[T]) add(one asking[T], claim Claim, concerned sets.Set[T]) {
	all, found := r[claim]
	switch {
	case !found:
		r[claim] = claimants[T]{best: one}
		return
	case all.has(one):
		return
	case one.precedes(all.best):
		all.concern(concerned)
		one, all.best = all.best, one
	}
	if all.others == nil {
		all.others = &contest[T]{index: map[asking[T]]int{}}
	}
	heap.Push(all.others, one)
	r[claim] = all
}

// remove removes a claim. If it was the best, it affects those that have it now.
func (r Registry[T]) remove(one asking[T], claim Claim, concerned sets.Set[T]) {
	all, found := r[claim]
	switch {
	case !found || !all.has(one):
		return
	case all.best != one:
		heap.Remove(all.others, all.others.index[one])
	case all.others == nil:
		delete(r, claim)
		return
	default:
		all.best = heap.Pop(all.others).(asking[T])
		if one.rank != Yielding {
			all.concern(concerned)
		}
	}
	if all.others.Len() == 0 {
		all.others = nil
	}
	r[claim] = all
}

func (c *claimants[T]) has(one asking[T]) bool {
	if c.best == one || c.others == nil {
		return c.best == one
	}
	_, found := c.others.index[one]
	return found
}

// concern adds those that have the claim: the best, or all if they yield.
func (c *claimants[T]) concern(concerned sets.Set[T]) {
	concerned.Insert(c.best.claimant)
	if c.best.rank == Yielding && c.others != nil {
		for _, a := range c.others.heap {
			concerned.Insert(a.claimant)
		}
	}
}

// Lost reports whether another claimant has the claim.
func (r Registry[T]) Lost(claimant T, claim Claim) bool {
	holder, found := r.Holder(claim)
	return found && holder != claimant
}

// Holder returns the claimant that has the best claim.
func (r Registry[T]) Holder(claim Claim) (holder T, found bool) {
	if all, found := r[claim]; found && all.best.rank != Yielding {
		return all.best.claimant, true
	}
	return holder, false
}

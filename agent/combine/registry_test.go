package combine

import (
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
)

// aged is a claimant whose precedence may change.
type aged struct{ id, age int }

// Precedes implements Claimant.
func (a *aged) Precedes(o *aged) bool {
	return a.age > o.age || a.age == o.age && a.id < o.id
}

// having returns those that have a claim, by a look at all: the best, or all if they yield.
func having(all []asking[*aged]) sets.Set[*aged] {
	out := sets.Set[*aged]{}
	for _, a := range all {
		if !slices.ContainsFunc(all, func(o asking[*aged]) bool { return o.precedes(a) }) {
			out.Insert(a.claimant)
		}
	}
	return out
}

// TestRegistryByComparison: whatever comes, goes or changes its age, those have the claim and are
// concerned that a look at all claimants finds.
func TestRegistryByComparison(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // a test that repeats
	claim := Claim{Port: 80}
	claimants := make([]*aged, 40)
	for i := range claimants {
		claimants[i] = &aged{id: i}
	}
	ranks := [][]Rank{nil, {Yielding}, {Ordinary}, {Yielding, Ordinary}, {Ordinary}, {Own}}
	r := Registry[*aged]{}
	var all []asking[*aged]
	for step := range 20_000 {
		had := having(all)
		one, shrinking := claimants[rnd.IntN(len(claimants))], step/100%2 == 1
		if shrinking && len(all) > 0 && rnd.IntN(2) == 0 { // the best first
			one = all[slices.IndexFunc(all, func(a asking[*aged]) bool { return had.Has(a.claimant) })].claimant
		}
		var before, after []Asked
		all = slices.DeleteFunc(all, func(a asking[*aged]) bool {
			if a.claimant == one {
				before = append(before, Asked{claim, a.rank})
			}
			return a.claimant == one
		})
		rnd.Shuffle(len(before), func(i, j int) { before[i], before[j] = before[j], before[i] })
		if !shrinking {
			for _, rank := range ranks[rnd.IntN(len(ranks)-step/200%2)] {
				after = append(after, Asked{claim, rank})
			}
		} else if rnd.IntN(3) == 0 {
			after = before // only its age changes
		}
		one.age = rnd.IntN(10)
		between := having(all)
		for _, a := range after {
			all = append(all, asking[*aged]{one, a.Rank})
		}
		concerned := sets.New(r.Set(one, before, after)...)
		have := having(all)
		if must := had.SymmetricDifference(have).Delete(one); !concerned.IsSuperset(must) || concerned.Has(one) || !had.Union(have).Union(between).IsSuperset(concerned) {
			t.Fatalf("step %d: %d had the claim, %d have it, and %d are concerned, not %d", step, len(had), len(have), len(concerned), len(must))
		}
		holder, found := r.Holder(claim)
		yielding := !slices.ContainsFunc(all, func(a asking[*aged]) bool { return a.rank != Yielding })
		if found == yielding || found && !have.Has(holder) || len(r) != min(1, len(all)) {
			t.Fatalf("step %d: %v has the claim (%t) of %d", step, holder, found, len(all))
		}
		for _, c := range claimants {
			if lost := r.Lost(c, claim); lost != (found && c != holder) {
				t.Fatalf("step %d: %d has lost: %t", step, c.id, lost)
			}
		}
	}
}

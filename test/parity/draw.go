package parity

import "math/rand/v2"

// dice draws what a world is made of. The same seed draws the same world.
type dice struct{ *rand.Rand }

func newDice(seed uint64) dice { return dice{rand.New(rand.NewPCG(seed, 0))} } //nolint:gosec // to be repeated, not to be secret

// chance is true in so many of a hundred cases.
func (d dice) chance(percent int) bool { return d.IntN(100) < percent }

// between returns a number from least to most.
func (d dice) between(least, most int) int { return least + d.IntN(most-least+1) }

// pick returns one of some things, all with the same chance.
func pick[T any](d dice, from ...T) T { return from[d.IntN(len(from))] }

// some returns n different ones of from, in any order.
func some[T any](d dice, n int, from ...T) []T {
	var out []T
	for _, i := range d.Perm(len(from))[:min(n, len(from))] {
		out = append(out, from[i])
	}
	return out
}

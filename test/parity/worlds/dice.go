package worlds

import "math/rand/v2"

// Dice draws what a world is made of. The same seed draws the same world.
type Dice struct{ *rand.Rand }

// NewDice returns dice that always fall the same for a seed.
func NewDice(seed uint64) Dice { return Dice{rand.New(rand.NewPCG(seed, 0))} } //nolint:gosec // to be repeated, not to be secret

// Chance is true in so many of a hundred cases.
func (d Dice) Chance(percent int) bool { return d.IntN(100) < percent }

// Between returns a number from least to most.
func (d Dice) Between(least, most int) int { return least + d.IntN(most-least+1) }

// Pick returns one of some things, all with the same chance.
func Pick[T any](d Dice, from ...T) T { return from[d.IntN(len(from))] }

// some returns n different ones of from, in any order.
func some[T any](d Dice, n int, from ...T) []T {
	var out []T
	for _, i := range d.Perm(len(from))[:min(n, len(from))] {
		out = append(out, from[i])
	}
	return out
}

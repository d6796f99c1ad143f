package rollout

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// world is a cluster whose agents take their time.
type world struct {
	now     time.Time
	nodes   []Node
	budgets map[string]Budget
	takes   map[string]time.Duration // until a node has applied something; negative: never
	bad     string                   // a revision that no node can apply
}

// step decides, as a controller that has just started, and lets a minute pass.
func (w *world) step(t *testing.T) Decision {
	t.Helper()
	for i := range w.nodes {
		n := &w.nodes[i]
		takes := w.takes[n.Name]
		if n.Actual != w.bad && takes >= 0 && !w.now.Before(n.Given.Add(takes)) {
			n.Applied, n.Programmed = true, true
		}
	}
	d := Decide(w.now, w.nodes, w.budgets)
	for _, name := range d.Grants {
		n := &w.nodes[slices.IndexFunc(w.nodes, func(n Node) bool { return n.Name == name })]
		n.Actual, n.Given, n.By, n.Applied = n.Desired, w.now, By(n.Causes, w.budgets), false
	}
	w.now = w.now.Add(time.Minute)
	return d
}

// want has all nodes want a revision, by a new generation of a budget.
func (w *world) want(revision, cause string) {
	b := w.budgets[cause]
	b.Generation++
	w.budgets[cause] = b
	for i := range w.nodes {
		n := &w.nodes[i]
		n.Desired, n.Causes = revision, []string{cause}
		if n.Desired == n.Actual {
			n.Causes = nil
		}
	}
}

func (w *world) carrying(revision string) (n int) {
	for i := range w.nodes {
		if w.nodes[i].Actual == revision {
			n++
		}
	}
	return n
}

// TestRolloutOverManyNodes lets changes reach fifty nodes, some slow, some that never
// answer, some that vanish: all others get them, and never are more unavailable than
// may be.
func TestRolloutOverManyNodes(t *testing.T) {
	for seed := range uint64(200) {
		dice := rand.New(rand.NewPCG(seed, 0))
		most := 1 + dice.IntN(6)
		w := &world{now: start, nodes: nodes(50), budgets: map[string]Budget{"": budget("1"), "edge": budget(fmt.Sprint(most))}, takes: map[string]time.Duration{}}
		for i := range w.nodes {
			w.takes[w.nodes[i].Name] = time.Duration(dice.IntN(9)) * time.Minute
		}
		steps := 0
		for ; w.carrying("new") < 50; steps++ {
			if steps > 1000 {
				t.Fatalf("seed %d: %d of 50 nodes after %d minutes", seed, w.carrying("new"), steps)
			}
			if dice.IntN(20) == 0 { // one goes
				w.nodes[dice.IntN(50)].Absent = true
			}
			w.step(t)
			unavailable := 0
			for _, n := range w.nodes {
				if !n.Absent && !n.available() {
					unavailable++
				}
			}
			if unavailable > most {
				t.Fatalf("seed %d: %d nodes are unavailable, at most %d may be", seed, unavailable, most)
			}
		}
		if steps < 50/most {
			t.Errorf("seed %d: done in %d steps with %d at a time", seed, steps, most)
		}
	}
}

// TestBadChangeStops: a change that no node can have reaches as many as may be
// unavailable, and the next generation that fixes it all.
func TestBadChangeStops(t *testing.T) {
	w := &world{now: start, nodes: nodes(50), budgets: map[string]Budget{"": budget("1"), "edge": budget("3")}, takes: map[string]time.Duration{}, bad: "bad"}
	w.want("bad", "edge")
	var d Decision
	for range 60 {
		d = w.step(t)
	}
	if n := w.carrying("bad"); n != 3 || len(d.States["edge"].Missed) != 3 {
		t.Fatalf("%d nodes have it, %q missed the deadline", n, d.States["edge"].Missed)
	}
	w.want("good", "edge")
	if d = w.step(t); len(d.States["edge"].Missed) > 0 || len(d.Grants) != 3 {
		t.Errorf("first the nodes that have it: %q, missed %q", d.Grants, d.States["edge"].Missed)
	}
	for range 60 {
		d = w.step(t)
	}
	if n := w.carrying("good"); n != 50 {
		t.Errorf("%d nodes are fixed", n)
	}
	if s := d.States["edge"]; s.Programmed != 50 {
		t.Errorf("%+v", s)
	}
}

// TestPolicyEditedInTheMiddle: nodes that have the old change get the new one, and those
// that have neither get the new one alone.
func TestPolicyEditedInTheMiddle(t *testing.T) {
	w := &world{now: start, nodes: nodes(50), budgets: map[string]Budget{"": budget("1"), "edge": budget("2")}, takes: map[string]time.Duration{}}
	w.want("first", "edge")
	for range 10 {
		w.step(t)
	}
	if n := w.carrying("first"); n < 10 || n > 30 {
		t.Fatalf("%d nodes have the first change", n)
	}
	w.want("second", "edge")
	for range 60 {
		w.step(t)
	}
	if n := w.carrying("second"); n != 50 {
		t.Errorf("%d nodes have the second change", n)
	}
}

package controllers

import (
	"strconv"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// A node that changes rarely is written at once, whatever its size.
func TestNodesThatChangeRarelyDoNotWait(t *testing.T) {
	p, now := newNodePace(), noon
	for _, bytes := range []int{1000, 1 << 20, 60 << 10, 1 << 20, 1000} {
		if wait := p.wait("n1", bytes, now); wait != 0 {
			t.Errorf("%d bytes after ten seconds wait %s", bytes, wait)
		}
		p.wrote("n1", bytes, now)
		now = now.Add(10 * time.Second)
	}
}

// Small nodes that change at once after each other do not wait either, as long as the shares last;
// large ones wait by their size.
func TestNodesWaitBySize(t *testing.T) {
	p := newNodePace()
	for i := range 100 {
		if wait := p.wait("n1", 10<<10, noon); wait != 0 {
			t.Fatalf("write %d of 10 KiB waits %s", i, wait)
		}
		p.wrote("n1", 10<<10, noon)
	}
	p.wait("large", 1<<20, noon)
	p.wrote("large", 1<<20, noon)
	for bytes, want := range map[int]time.Duration{1 << 20: 8 * time.Second, 1000: 8 * time.Second} {
		if wait := p.wait("large", bytes, noon); wait != want {
			t.Errorf("%d bytes after 1 MiB wait %s, want %s", bytes, wait, want)
		}
		if wait := p.waiting("large", noon.Add(time.Second)); wait != want-time.Second {
			t.Errorf("a second later it waits for %s more", wait)
		}
	}
	if wait := p.wait("large", 1000, noon.Add(8*time.Second)); wait != 0 || p.waiting("large", noon) != 0 {
		t.Errorf("8 s later it waits %s", wait)
	}
}

const attackStep = 20 * time.Millisecond

// attack has nodes of a size change all the time, and returns how many bytes were written in a
// time, and the longest time from a change of a node to its write.
func attack(p *nodePace, nodes, bytes int, lasting time.Duration, each func(now time.Time)) (written int, longest time.Duration) {
	ask, last := make([]time.Time, nodes), make([]time.Time, nodes)
	end := noon.Add(lasting)
	for now := noon; now.Before(end); now = now.Add(attackStep) {
		each(now)
		for i := range nodes {
			if last[i].IsZero() {
				last[i] = noon
			}
			longest = max(longest, now.Sub(last[i]))
			if now.Before(ask[i]) {
				continue
			}
			name := "attacked-" + strconv.Itoa(i)
			wait := p.wait(name, bytes, now)
			if ask[i] = now.Add(wait); wait > 0 {
				continue
			}
			p.wrote(name, bytes, now)
			written += bytes
			last[i] = now
		}
	}
	return written, longest
}

// However many nodes change all the time, whatever their size: the bytes of a second are bounded,
// each node waits at most for its own bytes at its own share, and others wait for nothing.
func TestNodesThatChangeAllTheTime(t *testing.T) {
	const nodes, seconds = 1000, 120
	for _, bytes := range []int{100, 20 << 10, 100 << 10, 160 << 10} {
		cost := max(bytes, leastBytes)
		// Bytes at the rates, what both kinds of buckets have at the start, and a write more of each.
		most := (seconds+1)*commonShare + nodes*(seconds*nodeShare+int(nodeBurst.Seconds())*nodeShare+cost)
		most = most / cost * bytes
		p := newNodePace()
		next := noon
		written, longest := attack(p, nodes, bytes, seconds*time.Second, func(now time.Time) {
			if now.Before(next) {
				return
			}
			// Both change as often as the own share of a node lets them.
			for name, size := range map[string]int{"small": 10 << 10, "large": 500 << 10} {
				if size > 10<<10 && now.Sub(noon)%(64*time.Second) != 0 {
					continue
				}
				if wait := p.wait(name, size, now); wait > 0 {
					t.Errorf("%d bytes: after %s the %s node of another tenant waits %s", bytes, now.Sub(noon), name, wait)
				}
				p.wrote(name, size, now)
			}
			next = now.Add(2 * time.Second)
		})
		if written > most || written < most*8/10 {
			t.Errorf("%d bytes: %d written in %d s, at most %d may be", bytes, written, seconds, most)
		}
		if bound := timeFor(cost, nodeShare); longest > bound+attackStep {
			t.Errorf("%d bytes: a change waited %s, at most %s it may", bytes, longest, bound)
		}
	}
}

// A change of another tenant on a node that is attacked like all others arrives within what the
// size of the node's object costs.
func TestChangesOnAttackedNodesArrive(t *testing.T) {
	const nodes, bytes = 1000, v1alpha1.MaxNamespaceLocalBytes + 30<<10
	p := newNodePace()
	_, longest := attack(p, nodes, bytes, time.Minute, func(time.Time) {})
	if bound := 20 * time.Second; longest > bound {
		t.Errorf("a change waited %s, docs/security.md promises %s", longest, bound)
	}
}

// A node that need not be written any more gives back what it has taken.
func TestNodesGiveBack(t *testing.T) {
	p := newNodePace()
	waits := func(name string) time.Duration {
		p.of(name).own.next = noon.Add(time.Hour) // its own share is used up
		return p.wait(name, commonShare/2, noon)
	}
	if a, b := waits("a"), waits("b"); a != 0 || b != 0 {
		t.Fatalf("the burst is not free: %s, %s", a, b)
	}
	if wait := waits("c"); wait != 0 {
		t.Fatalf("the next one waits %s", wait)
	}
	if wait := waits("d"); wait != 500*time.Millisecond {
		t.Fatalf("the one after it waits %s", wait)
	}
	p.settled("c")
	p.forget("d")
	if wait := waits("e"); wait != 0 {
		t.Errorf("what was given back is lost: %s", wait)
	}
	p.wrote("a", commonShare/8, noon) // less than it asked for
	if wait := waits("f"); wait != 125*time.Millisecond {
		t.Errorf("what was asked for and not written is lost: %s", wait)
	}
	if len(p.nodes) != 5 {
		t.Errorf("%d nodes are remembered", len(p.nodes))
	}
}

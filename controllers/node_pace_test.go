package controllers

import (
	"fmt"
	"testing"
	"time"
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

// Small nodes that change at once after each other do not wait either, as long as the common
// share lasts; large ones wait by their size.
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

// attack has nodes of a size change all the time, and returns how many bytes were written in a time,
// and in which steps each was.
func attack(p *nodePace, nodes, bytes int, lasting time.Duration, each func(now time.Time)) (written int, byNode map[string]int) {
	const step = 10 * time.Millisecond
	ask := make([]time.Time, nodes)
	byNode = map[string]int{}
	for now := noon; now.Before(noon.Add(lasting)); now = now.Add(step) {
		each(now)
		for i := range nodes {
			if now.Before(ask[i]) {
				continue
			}
			name := fmt.Sprintf("attacked-%d", i)
			wait := p.wait(name, bytes, now)
			if ask[i] = now.Add(wait); wait > 0 {
				continue
			}
			p.wrote(name, bytes, now)
			written += bytes
			byNode[name]++
		}
	}
	return written, byNode
}

// However many nodes change all the time: the bytes of a second are bounded, none is left
// behind, and what is small on other nodes is written at once.
func TestNodesThatChangeAllTheTime(t *testing.T) {
	const nodes, seconds = 1000, 300
	for bytes, most := range map[int]int{
		100 << 10: seconds*commonShare + commonShare + 100<<10, // and the burst, and one more
		20 << 10:  seconds*(commonShare+nodes*nodeShare) + commonShare + nodes*20<<10,
		100:       (seconds*(commonShare+nodes*nodeShare) + commonShare + nodes*leastBytes) / leastBytes * 100,
	} {
		p := newNodePace()
		next := noon
		written, byNode := attack(p, nodes, bytes, seconds*time.Second, func(now time.Time) {
			if now.Before(next) {
				return
			}
			if wait := p.wait("honest", 10<<10, now); wait != 0 {
				t.Errorf("%d bytes: after %s an honest node waits %s", bytes, now.Sub(noon), wait)
			}
			p.wrote("honest", 10<<10, now)
			next = now.Add(2 * time.Second)
		})
		if written > most || written < most*8/10 {
			t.Errorf("%d bytes: %d written in %d s, at most %d may be", bytes, written, seconds, most)
		}
		least, highest := 1<<30, 0
		for _, n := range byNode {
			least, highest = min(least, n), max(highest, n)
		}
		if len(byNode) < nodes || highest > least+1+least/10 {
			t.Errorf("%d bytes: %d nodes were written, %d to %d times each", bytes, len(byNode), least, highest)
		}
	}
}

// A node that need not be written any more gives back what it has taken.
func TestNodesGiveBack(t *testing.T) {
	p := newNodePace()
	waits := func(name string) time.Duration { return p.wait(name, commonShare/2, noon) }
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

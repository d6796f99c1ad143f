package nftables

import (
	"slices"
	"sync"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// maxCommits bounds the batches that a journal has one by one.
const maxCommits = 64

// eventPatience is how long an event may come later than what it reports, which takes less than a millisecond
// unless the machine is busy. Reading everything takes longer.
const eventPatience = 25 * time.Millisecond

// journal has what other programs have changed in the table since it was last known, so that a
// comparison need not read the rest. Its methods may be called from any goroutine.
type journal struct {
	mu sync.Mutex // guards everything below
	// period counts the times that events began, ended or were lost. Follows: it has events. Complete: the
	// table was read in this period, so that nothing is unknown that precedes the events.
	period            int
	follows, complete bool
	// seen is the generation up to which the journal has everything; 0: unknown.
	seen    uint32
	heard   chan struct{} // closed by the next batch
	commits []nft.Commit  // of other programs, in their order
}

// begin notes that events begin, or that some were lost; end, that there are no more.
func (j *journal) begin() { j.turn(true) }
func (j *journal) end()   { j.turn(false) }

func (j *journal) turn(follows bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.period++
	j.follows, j.complete, j.seen, j.commits = follows, false, 0, nil
	j.wake()
}

// wake wakes changes, which waits for a batch. The caller holds mu.
func (j *journal) wake() {
	if j.heard != nil {
		close(j.heard)
		j.heard = nil
	}
}

// note notes a batch.
func (j *journal) note(c *nft.Commit) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seen = c.Generation
	j.wake()
	if c.Changes.None() {
		return
	}
	if len(j.commits) < maxCommits {
		j.commits = append(j.commits, *c)
		return
	}
	last := &j.commits[maxCommits-1]
	last.Generation = c.Generation
	last.Changes.Add(c.Changes)
}

// now identifies the period. It is called before the table is read.
func (j *journal) now() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.period
}

// known notes that what the table had at a generation, when it was read in a period, is known.
func (j *journal) known(period int, generation uint32) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if period != j.period || !j.follows {
		return
	}
	j.complete = true
	if j.seen == 0 || before(j.seen, generation) {
		j.seen = generation
	}
	j.commits = slices.DeleteFunc(j.commits, func(c nft.Commit) bool { return !before(generation, c.Generation) })
}

// changes returns what other programs may have changed up to a generation, whose events it waits for. OK
// is false if that is unknown.
func (j *journal) changes(generation uint32) (c nft.Changes, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	late := time.NewTimer(eventPatience)
	defer late.Stop()
	for j.complete && before(j.seen, generation) {
		if j.heard == nil {
			j.heard = make(chan struct{})
		}
		heard := j.heard
		j.mu.Unlock()
		inTime := true
		select {
		case <-heard:
		case <-late.C:
			inTime = false
		}
		if j.mu.Lock(); !inTime {
			return c, false
		}
	}
	for i := range j.commits {
		c.Add(j.commits[i].Changes)
	}
	return c, j.complete
}

// before compares generations, which begin again after the highest.
func before(a, b uint32) bool { return int32(a-b) < 0 } //nolint:gosec // that is how

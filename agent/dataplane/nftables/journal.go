package nftables

import (
	"sync"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// journal has what other programs have changed in the table since it was last known, so that a
// comparison need not read the rest. Its methods may be called from any goroutine.
type journal struct {
	// patience is how long an event may come later than what it reports: less than a millisecond, unless the
	// machine is busy.
	patience time.Duration

	mu sync.Mutex // guards everything below
	// period counts the times that events began or ended.
	period int
	// follows: there are events. Complete: the table was read in this period, so that nothing is unknown
	// that precedes them.
	follows, complete bool
	// seen is the generation up to which the journal has everything; 0: unknown.
	seen  uint32
	heard chan struct{} // closed by the next batch
	// commits are those of other programs, in their order, with at most nft.MaxElements elements in all.
	commits []nft.Commit
}

// begin notes that events begin, end that there are no more.
func (j *journal) begin() { j.follow(true) }
func (j *journal) end()   { j.follow(false) }

func (j *journal) follow(follows bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.period++
	j.follows = follows
	j.forget()
	j.wake()
}

// forget makes everything unknown. The caller holds mu.
func (j *journal) forget() { j.complete, j.seen, j.commits = false, 0, nil }

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
	switch {
	case j.seen == 0:
	case !before(j.seen, c.Generation):
		return // the table was read since
	case c.Generation != following(j.seen):
		j.forget() // events are missing
	}
	j.seen = c.Generation
	j.wake()
	if c.Changes.None() {
		return
	}
	j.commits = append(j.commits, *c)
	elements := 0
	for i := range j.commits {
		elements += max(1, len(j.commits[i].Changes.Elements)+len(j.commits[i].Changes.Whole))
	}
	if elements > nft.MaxElements {
		all := j.all()
		j.commits = []nft.Commit{{Generation: c.Generation, Changes: &all}}
	}
}

// all are the changes of all commits. The caller holds mu.
func (j *journal) all() (out nft.Changes) {
	for i := range j.commits {
		out.Add(j.commits[i].Changes)
	}
	return out
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
	for len(j.commits) > 0 && !before(generation, j.commits[0].Generation) {
		j.commits = j.commits[1:]
	}
}

// changes returns what other programs may have changed up to a generation, whose events it waits for. OK
// is false if that is unknown.
func (j *journal) changes(generation uint32) (c nft.Changes, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	late := time.NewTimer(j.patience)
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
	return j.all(), j.complete
}

// before compares generations, which begin again after the highest.
func before(a, b uint32) bool { return int32(a-b) < 0 } //nolint:gosec // that is how

// following is the generation after another one: the kernel omits 0.
func following(generation uint32) uint32 { return max(generation+1, 1) }

package load

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// beat is how often it is noted that the machine runs.
	beat = 100 * time.Millisecond
	// stopped is how late a beat is at least if the machine has stood still.
	stopped = time.Second
	// tooLong is how long the machine may stand still before a connection that is not answered
	// within Patience says nothing about rules.
	tooLong = Patience / 4
)

// pulse notes when the machine stands still: a kernel in User-mode Linux has one processor, and
// with it stand all of its processes, timers and packets.
type pulse struct {
	mu   sync.Mutex
	gaps []gap     // guarded by mu
	last time.Time // the last beat; zero: none so far; guarded by mu
}

type gap struct{ from, to time.Time }

// run notes beats until the context ends.
func (p *pulse) run(ctx context.Context) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		p.note(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// note notes a beat.
func (p *pulse) note(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.last.IsZero() && now.Sub(p.last) >= stopped {
		p.gaps = append(p.gaps, gap{p.last, now})
	}
	p.last = now
}

// still is for how long the machine has stood still between two times.
func (p *pulse) still(from, to time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	gaps := p.gaps
	if to.Sub(p.last) >= stopped { // the caller has run before the next beat
		gaps = append(slices.Clone(gaps), gap{p.last, to})
	}
	sum := time.Duration(0)
	for _, g := range gaps {
		if g.from.Before(from) {
			g.from = from
		}
		if g.to.After(to) {
			g.to = to
		}
		sum += max(0, g.to.Sub(g.from))
	}
	return sum
}

// isTimeout reports whether a connection failed because time was up, and for no other reason.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

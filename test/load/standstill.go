package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

const (
	// beat is how often it is noted that the machine runs.
	beat = 100 * time.Millisecond
	// stopped is how late a beat is at least if the machine has stood still.
	stopped = time.Second
	// tooLong is how long the machine may stand still before a connection that is not answered
	// within Patience proves nothing about rules.
	tooLong = Patience / 4
	// maxExplained is how many connections a Pulse explains. Where more time out, the run has to be
	// made again on a machine that does not stand still.
	maxExplained = 3
)

// Pulse notes when the machine stands still: a kernel in User-mode Linux has one processor, and
// with it stand all of its processes, timers and packets. The zero value is ready for use.
type Pulse struct {
	mu   sync.Mutex
	gaps []gap     // guarded by mu
	last time.Time // the last beat; zero: none so far; guarded by mu

	explained int // connections; guarded by mu
}

type gap struct{ from, to time.Time }

// Run notes beats until the context ends.
func (p *Pulse) Run(ctx context.Context) {
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
func (p *Pulse) note(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.last.IsZero() && now.Sub(p.last) >= stopped {
		p.gaps = append(p.gaps, gap{p.last, now})
	}
	p.last = now
}

// still is for how long the machine has stood still between two times.
func (p *Pulse) still(from, to time.Time) time.Duration {
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

// Try makes a connection. If it times out, and User-mode Linux stood still for so much of its time that
// this proves nothing about rules, Try prints that and makes it again: a few times only, and never on
// a real kernel. It returns when the connection began that counts.
func (p *Pulse) Try(to string, connect func(begun time.Time) error) (begun time.Time, err error) {
	begun = time.Now()
	if err = connect(begun); !uml.Inside() || !isTimeout(err) {
		return begun, err
	}
	still := p.still(begun, time.Now())
	if still < tooLong {
		return begun, err
	}
	if err := p.explain(to, still, err); err != nil {
		return begun, err
	}
	begun = time.Now()
	return begun, connect(begun)
}

// explain counts and prints a connection that is made again, or returns that there are too many.
func (p *Pulse) explain(to string, still time.Duration, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.explained == maxExplained {
		return fmt.Errorf("the machine stood still for %s, and %d connections were repeated before: this run proves nothing: %w",
			still.Round(100*time.Millisecond), maxExplained, err)
	}
	p.explained++
	fmt.Printf("| connection %d of at most %d to be repeated, because the machine stood still for %s: %s: %v\n", // the | has hack/testreport show it
		p.explained, maxExplained, still.Round(100*time.Millisecond), to, err)
	return nil
}

// isTimeout reports whether a connection failed because time was up, and for no other reason.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

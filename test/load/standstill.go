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
)

// Pulse notes when the machine stands still: a kernel in User-mode Linux has one processor, and
// with it stand all of its processes, timers and packets. The zero value is ready for use.
type Pulse struct {
	mu   sync.Mutex
	gaps []gap     // guarded by mu
	last time.Time // the last beat; zero: none so far; guarded by mu
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
// this proves nothing about rules, Try makes it again, which counts as a retried test: never on a real
// kernel. It returns when the connection began that counts.
func (p *Pulse) Try(to string, connect func(begun time.Time) error) (begun time.Time, err error) {
	begun = time.Now()
	if err = connect(begun); !uml.Inside() {
		return begun, err
	}
	still, unproven := p.unproven(begun, time.Now(), err)
	if !unproven {
		return begun, err
	}
	fmt.Printf("| %s%s, while the machine stood still for %s: %v\n", PartRepeated, to, still.Round(100*time.Millisecond), err) // the | has hack/testreport show it
	begun = time.Now()
	return begun, connect(begun)
}

// unproven reports whether the failure of a connection proves nothing, because the machine stood still too
// long meanwhile.
func (p *Pulse) unproven(begun, ended time.Time, err error) (still time.Duration, is bool) {
	still = p.still(begun, ended)
	return still, isTimeout(err) && still >= tooLong
}

// isTimeout reports whether a connection failed because time was up, and for no other reason.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

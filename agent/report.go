package agent

import (
	"context"

	"github.com/nodeproxy-io/nodeproxy/agent/desired"
)

// reportLoop writes the status whenever it is due.
func (a *Agent) reportLoop(ctx context.Context) {
	for ctx.Err() == nil {
		s, f := a.known()
		a.showMetrics(s, f)
		a.logStuck(a.loop.Overdue())
		a.writer.write(ctx, s, f)
		a.noteReported(s, f)
		timer := a.options.Clock.NewTimer(statusTick)
		select {
		case <-ctx.Done():
		case <-a.poke:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// known is what the status is made of. What is to be done with the kernel is of the
// moment of the snapshot: what is known of the kernel means another thing where
// that has changed.
func (a *Agent) known() (desired.Snapshot, facts) {
	s := a.store.Snapshot()
	return s, a.facts(&s)
}

// facts are those that go with a snapshot.
func (a *Agent) facts(s *desired.Snapshot) facts {
	f := facts{
		audit: s.Audit, removing: s.Removal.Wanted,
		version: a.options.Version, started: a.started, kernel: a.options.Kernel,
		formats:  a.store.Formats,
		families: a.fanout.Families(), warnings: append(a.portTroubles(), a.checkTroubles()...), drift: a.drift.Facts(),
	}
	f.tracking = a.tracking.facts(a.mayWrite())
	a.addTurn(&f)
	a.mu.Lock()
	defer a.mu.Unlock()
	f.iptables = a.iptables
	return f
}

func (a *Agent) pokeStatus() {
	select {
	case a.poke <- struct{}{}:
	default: // a poke is waiting already
	}
}

package agent

import (
	"context"

	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
)

// showMetrics brings the gauges up to date. Only one goroutine calls it.
func (a *Agent) showMetrics(s desired.Snapshot, f status.Facts) {
	a.metrics.Show(s)
	if s.Own != nil {
		a.metrics.ShowConditions(status.Build(s, f, nil).Conditions)
	}
}

// reportLoop writes the status whenever it is due.
func (a *Agent) reportLoop(ctx context.Context) {
	for ctx.Err() == nil {
		s, f := a.known()
		a.showMetrics(s, f)
		a.logStuck(a.loop.Overdue())
		a.writer.Write(ctx, s, f)
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
func (a *Agent) known() (desired.Snapshot, status.Facts) {
	s := a.store.Snapshot()
	return s, a.facts(&s)
}

// facts are those that go with a snapshot.
func (a *Agent) facts(s *desired.Snapshot) status.Facts {
	f := status.Facts{
		Audit: s.Audit, Removing: s.Removal.Wanted,
		Version: a.options.Version, Started: a.started, Kernel: a.options.Kernel,
		Formats:  a.store.Formats,
		Families: a.fanout.Families(), Warnings: append(a.portTroubles(), a.checkTroubles()...), Drift: a.drift.Facts(),
	}
	f.Tracking = a.tracking.Facts(a.mayWrite())
	a.addTurn(&f)
	a.mu.Lock()
	defer a.mu.Unlock()
	f.Iptables = a.iptables
	return f
}

func (a *Agent) pokeStatus() {
	select {
	case a.poke <- struct{}{}:
	default: // a poke is waiting already
	}
}

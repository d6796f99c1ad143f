package agent

import (
	"context"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/agent/syncer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// syncSome writes what has changed to the kernel, unless all without what is costly to write.
// The sync loop calls it.
func (a *Agent) syncSome(ctx context.Context, all bool) (syncer.Load, error) {
	load := a.store.Choose(all)
	err := a.progressing(a.syncChosen)(ctx)
	load.Costly = load.Costly || a.store.Isolated()
	return load, err
}

// sync is syncSome within another run of the sync loop, which does not learn that something is
// left.
func (a *Agent) sync(ctx context.Context) error {
	if load := a.store.Choose(true); load.Left {
		a.loop.Trigger()
	}
	return a.syncChosen(ctx)
}

// syncChosen writes what was chosen.
func (a *Agent) syncChosen(ctx context.Context) error {
	if a.store.Removing() {
		return a.removeRules(ctx)
	}
	if a.store.Auditing() {
		return a.audit(ctx)
	}
	if !a.mayWrite() || !a.stillOurTurn(ctx, false) {
		return nil
	}
	if !a.chooseMode(ctx) {
		return nil
	}
	a.tuneTracking()
	b, ok := a.store.PrepareWrite()
	if !ok {
		return nil // Audit, since we have asked: the settings have triggered what follows
	}
	if len(b.Rulesets) == 0 {
		a.store.Commit(b, nil, nil)
		a.updateChecks(nil)
		a.metrics.Proxy.Programmed(a.store.ProgrammedChanges())
		a.noteReady()
		a.pokeStatus()
		return nil
	}
	applyCtx, cancel := a.writing(ctx)
	defer cancel()
	start := a.options.Clock.Now()
	outcomes := a.fanout.Apply(applyCtx, b.Rulesets)
	end := a.options.Clock.Now()
	a.noteVersion()
	if a.store.CurrentEpoch() != b.Epoch {
		return nil // our turn has ended, and with it what we know of the kernel
	}
	a.store.Excuse(outcomes)
	kind := syncKind(b.Rulesets, outcomes)
	report := &v1alpha1.SyncReport{Time: status.Seconds(end), DurationMilliseconds: end.Sub(start).Milliseconds(), Kind: kind}
	succeeded := false
	for _, outcome := range outcomes {
		if outcome.Err == nil {
			succeeded = true
			report.ServicesChanged += int32(outcome.Value.ServicesChanged)
		}
	}
	if !succeeded {
		report = nil
	}
	done := &applied{
		Batch: b, outcomes: outcomes, kind: kind, report: report, end: end, took: end.Sub(start),
		first: a.store.Commit(b, outcomes, report), err: dataplane.JoinErrors(outcomes), stopping: ctx.Err() != nil,
	}
	for _, follow := range a.followers() {
		follow(done)
	}
	return done.err
}

// applied is an Apply that has ended.
type applied struct {
	desired.Batch
	outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result]
	kind     v1alpha1.SyncKind
	report   *v1alpha1.SyncReport // nil: no family succeeded
	end      time.Time
	took     time.Duration
	err      error
	first    bool // it has completed the first set
	stopping bool // the agent stops
}

// followers are what follows an Apply, in this order.
func (a *Agent) followers() []func(*applied) {
	return []func(*applied){
		func(*applied) {
			if a.mayWrite() {
				a.tuneLate()
			}
		},
		func(d *applied) { a.metrics.Repaired(a.drift.Synced(d.outcomes, d.first)) },
		func(d *applied) {
			if !d.Partial {
				a.cleanFlows(d.Rulesets, d.outcomes)
			}
		},
		func(d *applied) { a.updateChecks(d.outcomes) },
		func(d *applied) { a.metrics.Proxy.Synced(d.Rulesets, d.outcomes, d.end) },
		func(*applied) { a.metrics.Proxy.Programmed(a.store.ProgrammedChanges()) },
		a.logApplied,
		func(d *applied) {
			if d.first {
				a.loop.VerifySoon()
			}
		},
		func(*applied) { a.noteReady() },
		func(*applied) { a.pokeStatus() },
	}
}

func (a *Agent) logApplied(d *applied) {
	if !d.stopping {
		a.logSync(d.err, d.kind, d.took, d.report)
		a.logAbsent(a.store.Absences())
		a.logWarnings(a.store.Warnings())
		a.logRetiring(a.store.Retiring())
		a.logRefused(a.store.RejectedNames())
	}
	if d.first {
		a.log.Info("The kernel holds a first complete set of rules", "duration", d.took)
	}
}

// syncKind is Full if some family's kernel was compared in full. A data plane
// may do so unasked; of one that failed only what it was asked is known.
func syncKind(rulesets map[dataplane.Family]*dataplane.Ruleset, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result]) v1alpha1.SyncKind {
	for family, outcome := range outcomes {
		if outcome.Value.Kind == v1alpha1.SyncFull || outcome.Err != nil && rulesets[family].Full {
			return v1alpha1.SyncFull
		}
	}
	return v1alpha1.SyncPartial
}

func (a *Agent) noteVersion() {
	if a.options.IPTables == nil {
		return
	}
	version := a.options.IPTables()
	a.mu.Lock()
	a.iptables = version
	a.mu.Unlock()
}

// finishing returns a context that outlives ctx by stopGrace, so that a write
// that has begun when the agent is told to stop can end.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(stopGrace, cancel) })
	return out, func() { stop(); cancel() }
}

// trigger asks the sync loop for a sync.
func (a *Agent) trigger() {
	a.metrics.Proxy.Queued(a.fanout.Families(), a.options.Clock.Now())
	a.loop.Trigger()
}

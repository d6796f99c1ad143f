package agent

import (
	"context"
	"errors"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/agent/syncer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// stopGrace is how long a write may take after the agent is asked to stop.
const stopGrace = 10 * time.Second

// syncSome writes changes to the kernel; unless all, without costly ones. The sync loop calls
// it.
func (a *Agent) syncSome(ctx context.Context, all bool) (syncer.Load, error) {
	load := a.store.Choose(all)
	var pause func() bool
	if load.Costly { // small changes come between its parts
		pause = a.loop.Waiting
	}
	err := a.progressing(func(ctx context.Context) error { return a.syncChosen(ctx, pause) })(ctx)
	last := a.store.LastLoad()
	return syncer.Load{Costly: load.Costly || last.Costly, Left: load.Left || last.Left}, err
}

// sync is syncSome within another run of the sync loop, which does not learn that something is
// left.
func (a *Agent) sync(ctx context.Context) error {
	if load := a.store.Choose(true); load.Left {
		a.loop.Trigger()
	}
	return a.syncChosen(ctx, nil)
}

// syncChosen writes the chosen changes, and leaves a part of large ones when pause asks for it.
func (a *Agent) syncChosen(ctx context.Context, pause func() bool) error {
	if a.store.CurrentRemoval().Requested {
		return a.removeRules(ctx)
	}
	if a.store.Auditing() {
		return errors.Join(a.relinquish(ctx), a.audit(ctx))
	}
	if !a.owner.MayWrite() {
		return a.relinquish(ctx)
	}
	if !a.owner.Check(ctx, false) || !a.chooseMode(ctx) {
		return nil
	}
	// Before the rules, some of which depend on it.
	if settings, _, _ := a.store.OwnObject(); a.tracking.Due(settings.ProxySettings) {
		a.tune()
	}
	b, ok := a.store.PrepareWrite(pause)
	if !ok {
		return nil // enforcement is Audit now: the settings have triggered what follows
	}
	if len(b.Rulesets) == 0 {
		a.store.Commit(b, nil, nil)
		a.updateChecks(nil)
		a.metrics.Proxy.Programmed(a.store.TakeProgrammedChanges())
		a.noteReady()
		a.pokeStatus()
		return nil
	}
	applyCtx, cancel := a.writing(ctx)
	defer cancel()
	start := a.options.Clock.Now()
	for family, ruleset := range b.Rulesets {
		for _, cleaner := range a.cleaners[family] {
			cleaner.Applying(ruleset)
		}
	}
	outcomes := a.fanout.Apply(applyCtx, b.Rulesets)
	end := a.options.Clock.Now()
	a.noteVersion()
	if a.store.CurrentEpoch() != b.Epoch {
		return nil // ownership has ended, and with it what is known of the kernel
	}
	a.store.Excuse(outcomes)
	done := &applied{
		Batch: b, outcomes: outcomes, kind: syncKind(b.Rulesets, outcomes), end: end, took: end.Sub(start), stopping: ctx.Err() != nil,
	}
	done.report = done.newReport()
	done.first = a.store.Commit(b, outcomes, done.report)
	done.err = dataplane.JoinErrors(outcomes)
	for _, listener := range a.listeners() {
		listener(done)
	}
	a.probeModes(ctx) // last: it may take long
	return done.err
}

// syncKind is Full if some family was compared in full. A data plane may do so unasked; of
// one that failed only what it was asked is known.
func syncKind(rulesets map[dataplane.Family]*dataplane.Ruleset, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result]) v1alpha1.SyncKind {
	for family, outcome := range outcomes {
		if outcome.Value.Kind == v1alpha1.SyncFull || outcome.Err != nil && rulesets[family].Full {
			return v1alpha1.SyncFull
		}
	}
	return v1alpha1.SyncPartial
}

// newReport is what the status reports of the write; nil: no family succeeded.
func (d *applied) newReport() *v1alpha1.SyncReport {
	report := &v1alpha1.SyncReport{Time: status.Seconds(d.end), DurationMilliseconds: d.took.Milliseconds(), Kind: d.kind}
	succeeded := false
	for _, outcome := range d.outcomes {
		if outcome.Err == nil {
			succeeded = true
			report.ServicesChanged += int32(outcome.Value.ServicesChanged)
		}
	}
	if !succeeded {
		return nil
	}
	return report
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

// writing returns a context that outlives ctx by stopGrace, but not the ownership, unless
// that ends because the agent stops.
func (a *Agent) writing(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := finishing(ctx)
	stop := context.AfterFunc(a.owner.Context(), func() {
		if ctx.Err() == nil {
			cancel()
		}
	})
	return out, func() { stop(); cancel() }
}

// finishing returns a context that outlives ctx by stopGrace, so that a write can end that
// has begun when the agent is asked to stop.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(stopGrace, cancel) })
	return out, func() { stop(); cancel() }
}

// progressing reports each step to the sync loop, so that the kubelet does not take a long
// one for a stuck one.
func (a *Agent) progressing(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error { return do(dataplane.WithProgress(ctx, a.loop.Progress)) }
}

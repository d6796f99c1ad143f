package agent

import (
	"cmp"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// applied is a finished Apply.
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

// listeners are called after an Apply, in this order.
func (a *Agent) listeners() []func(*applied) {
	return []func(*applied){
		func(*applied) { // the rules may have brought connection tracking
			if a.owner.MayWrite() && a.tracking.Late() && a.tune() {
				a.loop.Trigger()
			}
		},
		func(d *applied) { a.metrics.Repaired(a.drift.Synced(d.outcomes, d.first)) },
		a.cleanFlows,
		func(d *applied) { a.updateChecks(d.outcomes) },
		func(d *applied) { a.metrics.Proxy.Synced(d.Rulesets, d.outcomes, d.end) },
		func(*applied) { a.metrics.Proxy.Programmed(a.store.TakeProgrammedChanges()) },
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

// tune sets the kernel's settings, also if others have changed them. It reports whether rules
// have to follow.
func (a *Agent) tune() bool {
	settings, _, _ := a.store.OwnObject()
	follow := a.tracking.Tune(settings.ProxySettings)
	if follow {
		a.store.Refresh()
	}
	return follow
}

// newCleaners returns what removes stale flows; nothing without a table.
func (a *Agent) newCleaners() map[dataplane.Family][]*conntrack.Cleaner {
	cleaners := map[dataplane.Family][]*conntrack.Cleaner{}
	if a.options.Flows == nil {
		return cleaners
	}
	for _, family := range a.fanout.Families() {
		for _, protocol := range []v1alpha1.Protocol{v1alpha1.ProtocolUDP, v1alpha1.ProtocolTCP} {
			cleaners[family] = append(cleaners[family], conntrack.New(conntrack.Options{
				Family: family, Protocol: protocol, Table: a.options.Flows, Clock: a.options.Clock, Log: a.log,
				May: a.mayClean, Report: a.cleaned,
			}))
		}
	}
	return cleaners
}

// mayClean reports whether stale flows may be removed: while the agent may write, and after
// the rules that caused them are removed, unless another proxy has come.
func (a *Agent) mayClean() bool {
	if a.owner.MayWrite() {
		return true
	}
	r := a.store.CurrentRemoval()
	return a.owner.Facts().Other == "" && r.Done && r.Leave == ""
}

// cleaned counts what a comparison of flows with the rules did.
func (a *Agent) cleaned(family dataplane.Family, pass conntrack.Pass) {
	a.metrics.Cleaned(family, pass)
	a.tracking.Cleaned(pass)
}

// cleanFlows has flows compared with the rules in the kernel. A family whose Apply failed
// waits for its next success: until then outdated rules could create a removed flow again.
func (a *Agent) cleanFlows(d *applied) {
	if d.Partial {
		return
	}
	for family, cleaners := range a.cleaners {
		outcome, tried := d.outcomes[family]
		if !tried || outcome.Err != nil {
			continue
		}
		ruleset := cmp.Or(outcome.Value.Instead, d.Rulesets[family])
		for _, cleaner := range cleaners {
			cleaner.Committed(ruleset, outcome.Value)
		}
	}
}

func (a *Agent) logApplied(d *applied) {
	if !d.stopping {
		a.logSync(d.err, d.kind, d.took, d.report)
		notices := a.store.Notices()
		a.logUnavailable(notices.Unavailable)
		a.logWarnings(notices.Warnings)
		a.logCleanups(notices.PendingCleanups)
		a.logRejected(notices.Rejected)
	}
	if d.first {
		a.log.Info("The kernel has its first complete set of rules", "duration", d.took)
	}
}

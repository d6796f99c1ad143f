package agent

import (
	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// newCleaners returns what removes stale flows; nothing without a table.
func (a *Agent) newCleaners() map[dataplane.Family]*conntrack.Cleaner {
	cleaners := map[dataplane.Family]*conntrack.Cleaner{}
	if a.options.Flows == nil {
		return cleaners
	}
	for _, family := range a.fanout.Families() {
		cleaners[family] = conntrack.New(conntrack.Options{
			Family: family, Table: a.options.Flows, Clock: a.options.Clock, Log: a.log,
			May: a.mayClean, Report: a.cleaned,
		})
	}
	return cleaners
}

// cleaned counts what a comparison of flows to the rules did.
func (a *Agent) cleaned(family dataplane.Family, pass conntrack.Pass) {
	a.metrics.cleaned(family, pass)
	a.tracking.cleaned(pass)
}

// cleanFlows has the flows compared to the rules that the kernel holds now. A
// family whose Apply failed waits for its next success: until then a flow that
// is removed could be made again by rules that are gone by then.
func (a *Agent) cleanFlows(rulesets map[dataplane.Family]*dataplane.Ruleset, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result]) {
	for family, cleaner := range a.cleaners {
		if outcome, tried := outcomes[family]; tried && outcome.Err == nil {
			cleaner.Committed(rulesets[family], outcome.Value)
		}
	}
}

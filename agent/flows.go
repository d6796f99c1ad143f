package agent

import (
	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

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

// cleaned counts what a comparison of flows to the rules did.
func (a *Agent) cleaned(family dataplane.Family, pass conntrack.Pass) {
	a.metrics.Cleaned(family, pass)
	a.tracking.Cleaned(pass)
}

// cleanFlows has the flows compared to the rules that the kernel holds now. A
// family whose Apply failed waits for its next success: until then a flow that
// is removed could be made again by rules that are gone by then.
func (a *Agent) cleanFlows(rulesets map[dataplane.Family]*dataplane.Ruleset, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result]) {
	for family, cleaners := range a.cleaners {
		outcome, tried := outcomes[family]
		if !tried || outcome.Err != nil {
			continue
		}
		for _, cleaner := range cleaners {
			cleaner.Committed(rulesets[family], outcome.Value)
		}
	}
}

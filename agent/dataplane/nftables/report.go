package nftables

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/api/text"
)

// Report implements engine.Operations.
func (o operations) Report(r *dataplane.Ruleset, result *dataplane.Result) {
	result.Failed = len(o.engine.Rejected) > 0
	if len(o.config.nodePortIPs) == 0 {
		if w := engine.NodePortWarning(o.family, o.config.nodePorts, r.Services); w != "" {
			result.Warnings = append(result.Warnings, w)
		}
	}
	result.Counts = o.actual.counts(o.config)
}

// findings describes a comparison, human-readable.
func (c *config) findings(d *comparison) []dataplane.Finding {
	var out []dataplane.Finding
	add := func(name dataplane.ServiceName, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		out = append(out, dataplane.Finding{Service: name, Key: text, Text: text})
	}
	if d.rebuild {
		add(dataplane.ServiceName{}, "table %s has sets or hooks of another layout", TableName)
	}
	if d.adopt {
		add(dataplane.ServiceName{}, "table %s is not protected from changes by other programs", TableName)
	}
	for _, s := range d.sets {
		add(dataplane.ServiceName{}, "missing set %s of table %s", s.Name, TableName)
	}
	for _, chain := range d.chains {
		add(dataplane.ServiceName{}, "chain %s of table %s is missing or has other rules", chain.name, TableName)
	}
	for _, name := range d.unknownSets {
		add(dataplane.ServiceName{}, "unexpected set %s of table %s", name, TableName)
	}
	for _, name := range d.unknownChains {
		add(dataplane.ServiceName{}, "unexpected chain %s of table %s", name, TableName)
	}
	for _, name := range slices.SortedFunc(maps.Keys(d.services), dataplane.ServiceName.Compare) {
		for _, set := range slices.Sorted(maps.Keys(d.services[name].added)) {
			add(name, "Service %s: missing or different: %s of %s", name, text.Count(len(d.services[name].added[set]), "element"), set)
		}
	}
	for what, sets := range map[string]map[string][]nft.Element{"unexpected": d.stale.deleted, "missing": d.stale.added} {
		for _, set := range slices.Sorted(maps.Keys(sets)) {
			if n := len(sets[set]); n > 0 {
				add(dataplane.ServiceName{}, "%s: %s of %s", what, text.Count(n, "element"), set)
			}
		}
	}
	return out
}

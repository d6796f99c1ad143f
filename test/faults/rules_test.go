package faults

import (
	"fmt"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// flushRepair is how long new connections may fail after a flush: five times what it
// typically takes on two cores.
const flushRepair = 3 * time.Second

func ruleFaults() []fault {
	return []fault{{name: "rules-flushed", title: "`iptables -t nat -F`, 1,000 Services of 10 endpoints", repair: 30 * time.Second,
		still: true, inject: rulesFlushed}}
}

// rulesFlushed removes all rules of nat of all nodes, one node after the other.
func rulesFlushed(r *run) {
	tried := 0
	for _, node := range r.cluster.Nodes() {
		begun := time.Now()
		_, err := node.Exec(r.ctx, r.program(node, "iptables", ""), "-w", "-t", "nat", "-F")
		r.must(err)
		r.ended = time.Now()
		r.mayFail(begun, r.ended.Add(flushRepair))
		// Listing the rules all the time would take the processor from their repair:
		// the connections show when they are back, a list afterwards that all are.
		r.pass(flushRepair)
		r.until(r.fault.repair, r.sameRules)
		// Connections that fail take their time until they have.
		r.pass(load.Patience)
		took := time.Duration(0)
		if last := r.load.LastFailure(); last.After(r.ended) {
			took = last.Sub(r.ended)
		}
		r.repairTook = max(r.repairTook, took)
		r.remark("%s: the last connection that failed begun %.2f s after the flush", r.variant(node), took.Seconds())
		tried += r.load.Tried(begun, r.ended.Add(flushRepair))
	}
	r.fault.allowed = fmt.Sprintf("%d, begun within %s of a flush", tried, seconds(flushRepair))
}

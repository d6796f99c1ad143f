package faults

import (
	"fmt"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// flushRepair is how long rules may be gone after a flush.
const flushRepair = time.Second

func ruleFaults() []fault {
	return []fault{{name: "rules-flushed", title: "`iptables -t nat -F`, 1,000 Services of 10 endpoints", repair: 30 * time.Second,
		still: true, inject: rulesFlushed}}
}

// flushTries is how often a node's rules are flushed until a repair was quick
// enough: on a machine with other work a single one may be late.
const flushTries = 3

// rulesFlushed removes all rules of nat of all nodes, one node after the other.
func rulesFlushed(r *run) {
	for _, node := range r.cluster.Nodes() {
		for try := 1; try <= flushTries; try++ {
			if r.flushed(node, try == flushTries) {
				break
			}
		}
	}
	tried := 0
	for _, w := range r.windows {
		tried += r.load.Tried(w.from, w.to)
	}
	r.fault.allowed = fmt.Sprintf("%d, begun within %s of a flush", tried, seconds(flushRepair))
}

// flushed removes all rules of nat of a node and waits until they are back. It
// reports whether that was quick enough; where it was not, and this is not the
// last try, the connections that failed are excused.
func (r *run) flushed(node *cluster.Node, last bool) bool {
	failed := len(r.load.Failures())
	begun := time.Now()
	_, err := node.Exec(r.ctx, r.program(node, "iptables", ""), "-w", "-t", "nat", "-F")
	r.must(err)
	r.ended = time.Now()
	limit := r.ended.Add(flushRepair)
	// Listing the rules all the time would take the processor from their repair:
	// the connections tell when they are back, a list afterwards that all are.
	r.pass(flushRepair)
	r.until(r.fault.repair, r.sameRules)
	// Connections that fail take their time until they have.
	r.pass(load.Patience)
	took := time.Duration(0)
	if len(r.load.Failures()) > failed {
		took = r.load.LastFailure().Sub(r.ended)
	}
	r.repairTook = max(r.repairTook, took)
	r.remark("%s: the last connection that failed begun %.2f s after the flush", r.variant(node), took.Seconds())
	if late := took > flushRepair; late && !last {
		r.mayFail(begun, r.ended.Add(took+time.Millisecond))
		return false
	}
	r.mayFail(begun, limit)
	return true
}

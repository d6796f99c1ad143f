package faults

import (
	"fmt"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// flushRepair is how long new connections may fail after a flush: five times what it
// typically takes on two cores.
const flushRepair = 3 * time.Second

func ruleFaults(title string) []fault {
	return []fault{{name: "rules-flushed", title: title, repair: 30 * time.Second,
		still: true, inject: rulesFlushed}}
}

// reload is one batch with which a firewall replaces all tables by its own.
const reload = "flush ruleset; add table inet firewall; " +
	"add chain inet firewall forward { type filter hook forward priority filter; policy accept; }"

// flush removes all rules of nat of a node, in mode NFTables all tables.
func (r *run) flush(node *cluster.Node) error {
	command := []string{r.program(node, "iptables", ""), "-w", "-t", "nat", "-F"}
	if r.mode == v1alpha1.ModeNFTables {
		command = []string{"nft", reload}
	}
	_, err := node.Exec(r.ctx, command[0], command[1:]...)
	return err
}

// rulesFlushed removes all rules of nat of all nodes, one node after the other.
func rulesFlushed(r *run) {
	tried := 0
	for _, node := range r.cluster.Nodes() {
		begun := time.Now()
		r.must(r.flush(node))
		r.ended = time.Now()
		if r.mode == v1alpha1.ModeNFTables { // the kernel lets no other program remove it
			r.must(r.sameRules(r.ctx))
			continue
		}
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
		r.remark("%s: the last connection that failed begun %.2f s after the flush", r.called(node), took.Seconds())
		tried += r.load.Tried(begun, r.ended.Add(flushRepair))
	}
	if tried == 0 {
		return
	}
	r.fault.allowed = fmt.Sprintf("%d, begun within %s of a flush", tried, seconds(flushRepair))
}

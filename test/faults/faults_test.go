package faults

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// Environment variables that choose what is run.
const (
	chosenVariable = "FAULTS"      // names, comma-separated; empty: all
	seedVariable   = "FAULTS_SEED" // of what is random
)

// fault is something that goes wrong.
type fault struct {
	// name is how FAULTS names it, title how the table does.
	name, title string
	// repair is how long full repair may take after the fault has ended.
	repair time.Duration
	// allowed states which connections may fail, for the table; empty: none. The
	// fault itself decides when that is, by run.mayFail.
	allowed string
	// stay are the targets that the fault leaves alone, if it is not all.
	stay func(w *world) []load.Target
	// still means that the desired state cannot change meanwhile, so that repair
	// is seen in the kernel alone, without a Service that comes and goes.
	still bool
	// inject does it, and returns once it has ended.
	inject func(r *run)
}

// group is a cluster and the faults that it suffers, in this order.
type group struct {
	name    string
	options options
	// alone is for faults after which something has to happen within so short a
	// time that other clusters must not take the machine's.
	alone  bool
	faults []fault
}

func groups() []group {
	return []group{
		{name: "nftables", options: options{nodes: 2, more: 60, mode: v1alpha1.ModeNFTables},
			faults: inNFTables(agentFaults(), "agent-killed", "state-directory-full")},
		{name: "nftables-api-server", options: options{nodes: 3, mode: v1alpha1.ModeNFTables},
			faults: inNFTables(slices.Concat(ruleFaults("`nft flush ruleset` in a reload of a firewall"), apiServerFaults(), rebootFaults()), "rules-flushed", "api-server-down", "etcd-restarted", "agent-restarted", "reboot")},
		{name: "api-server", options: options{nodes: 2}, faults: apiServerFaults()},
		{name: "endpoints", alone: true, options: options{nodes: 2, standby: true, large: true}, faults: endpointFaults()},
		{name: "agents", options: options{nodes: 2, more: 60}, faults: agentFaults()},
		{name: "cut-off", options: options{nodes: 2}, faults: cutOffFaults()},
		{name: "permissions", options: options{nodes: 2}, faults: permissionsFaults()},
		{name: "objects", options: options{nodes: 2}, faults: objectFaults()},
		{name: "rules", alone: true, options: options{nodes: 2, more: 1000}, faults: ruleFaults("`iptables -t nat -F`, 1,000 Services of 10 endpoints")},
		{name: "clocks", options: options{nodes: 2, jumping: true}, faults: clockFaults()},
		{name: "reboot", options: options{nodes: 3}, faults: rebootFaults()},
		{name: "userspace", options: options{nodes: 2}, faults: userspaceFaults()},
	}
}

// TestFaults runs the groups side by side, as many at a time as -parallel allows.
func TestFaults(t *testing.T) {
	if err := cluster.Check(); err != nil {
		t.Skip(err)
	}
	chosen := choose(t)
	seed := seed(t)
	bin := build(t)
	rows := newTable(seed)
	t.Cleanup(rows.print)
	for _, g := range groups() {
		g.faults = slices.DeleteFunc(g.faults, func(f fault) bool { return !chosen(f.name) })
		if len(g.faults) == 0 {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			if !g.alone {
				t.Parallel() // after those that are alone
			}
			bin := bin
			if g.options.jumping {
				bin = buildJumping(t)
			}
			w := newWorld(t, bin, g.options)
			for _, f := range g.faults {
				t.Run(f.name, func(t *testing.T) {
					// A fault that is repeated by itself meets the same numbers.
					name := fnv.New64a()
					_, _ = name.Write([]byte(f.name))                    // a hash never returns an error
					w.random = rand.New(rand.NewPCG(seed, name.Sum64())) //nolint:gosec // not for secrets
					w.suffer(t, f, rows)
				})
			}
		})
	}
	if chosen(fullTable) {
		t.Run(fullTable, func(t *testing.T) { conntrackFull(t, rows) })
	}
}

// choose reads the chosen faults.
func choose(t *testing.T) func(name string) bool {
	t.Helper()
	text := os.Getenv(chosenVariable)
	if text == "" {
		return func(string) bool { return true }
	}
	var known []string
	for _, g := range groups() {
		for _, f := range g.faults {
			known = append(known, f.name)
		}
	}
	known = append(known, fullTable)
	chosen := strings.Split(text, ",")
	for _, name := range chosen {
		if !slices.Contains(known, name) {
			t.Fatalf("%s: there is no fault %q; there are %s", chosenVariable, name, strings.Join(known, ", "))
		}
	}
	return func(name string) bool { return slices.Contains(chosen, name) }
}

// seed is what random choices are made from: given, or of this moment.
func seed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv(seedVariable)
	if text == "" {
		return uint64(time.Now().UnixNano() % 1e6) //nolint:gosec // not negative
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", seedVariable, err)
	}
	return seed
}

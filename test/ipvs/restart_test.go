package ipvs

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// TestKilledAgentWritesNothing compares the counters of all virtual servers and
// rules: what is written again begins at zero.
func TestKilledAgentWritesNothing(tt *testing.T) {
	t := use(tt)
	node, from := t.cluster.Node(0), t.visitors[0].Place
	t.sequence(from, "tcp", at(plainIP, 80), 12)
	var before map[string]*server
	t.until(func(ctx context.Context) (err error) { // IPVS adds up its counters every two seconds
		before, err = servers(ctx, node)
		if s := before[key("tcp", at(plainIP, 80))]; err == nil && (s == nil || s.conns < 12) {
			err = fmt.Errorf("of 12 connections these are counted: %+v", s)
		}
		return err
	})
	packets, set := t.packets(node), t.exec(node, "ipset", "save")
	t.killAgent(0)
	t.sequence(from, "tcp", at(plainIP, 80), 6)
	t.startAgent(0)
	after, err := servers(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	for name, was := range before {
		now := after[name]
		switch {
		case now == nil:
			t.Errorf("virtual server %s is gone", name)
		case now.conns < was.conns || now.rule != was.rule || len(now.reals) != len(was.reals):
			t.Errorf("virtual server %s was %+v, is %+v", name, *was, *now)
		}
	}
	if len(after) != len(before) {
		t.Errorf("there were %d virtual servers, there are %d", len(before), len(after))
	}
	now := t.packets(node)
	for rule, was := range packets {
		if count, there := now[rule]; !there || count < was {
			t.Errorf("a rule has counted %d packets before and %d now (%t): %s", was, count, there, rule)
		}
	}
	if now := t.exec(node, "ipset", "save"); sorted(now) != sorted(set) {
		t.Errorf("ipsets were\n%s\nand are\n%s", set, now)
	}
}

// packets are the rules of a node with the packets that they have counted.
func (t test) packets(node *cluster.Node) map[string]int {
	t.Helper()
	out, table := map[string]int{}, ""
	for line := range strings.Lines(t.exec(node, "iptables-save", "-c")) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "*") {
			table = line
		}
		count, rule, found := strings.Cut(line, " ")
		if found && strings.HasPrefix(count, "[") {
			first, _, _ := strings.Cut(count[1:], ":")
			out[table+" "+rule] = number(first)
		}
	}
	return out
}

// killAgent kills the agent of a node and waits for nothing.
func (t test) killAgent(i int) {
	t.Helper()
	if err := t.agents[i].Kill(); err != nil {
		t.Fatal(err)
	}
}

// startAgent starts the agents of nodes and waits until they have reported.
func (t test) startAgent(numbers ...int) {
	t.Helper()
	since := time.Now().Truncate(time.Second)
	for _, i := range numbers {
		var err error
		if t.agents[i], err = t.nodeproxy.StartAgent(t.cluster.Node(i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range numbers {
		t.until(func(ctx context.Context) error {
			rules, err := t.rules(ctx, t.cluster.Node(i))
			if err != nil {
				return err
			}
			if rules.Status.Agent == nil || rules.Status.Agent.StartTime.Time.Before(since) {
				return fmt.Errorf("the new agent of %s has not reported yet; %s", t.cluster.Node(i).Name(), t.agents[i].Tail())
			}
			return t.programmed(ctx)
		})
	}
}

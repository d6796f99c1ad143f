package ipvs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/load"
	"github.com/nodeproxy-io/nodeproxy/test/rollouts"
)

// pace is how many connections are begun each second.
const pace = 20

// remembered is how long IPVS remembers connections that have ended in good order, two
// minutes, and what it takes to see that besides.
const remembered = 2*time.Minute + limit

// poolPolicy is the name of the policy by which TestModeSwitch changes modes.
const poolPolicy = "pool"

// TestModeSwitch moves all nodes from mode IPVS to IPTables, to IPVS and to IPTables by
// a policy, one after the other, and back by deleting it, while connections are made and
// others are held. None fails, and mode IPTables leaves nothing. What is left of mode
// IPVS waits for the connections: that it goes then is for TestWithoutIPVS.
func TestModeSwitch(tt *testing.T) {
	t := use(tt)
	follow, err := rollouts.Follow(t.Context(), t.cluster)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(follow.End)
	l := t.load()
	defer t.judge(l)
	policy := &v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: poolPolicy}}
	t.Cleanup(func() {
		err := errors.Join(client.IgnoreNotFound(t.cluster.Client().Delete(t.ctx, policy)), install.Until(t.ctx, limit, t.programmed))
		if err != nil {
			t.Error("deleting the policy:", err)
		}
	})
	for _, mode := range []v1alpha1.ProxyMode{v1alpha1.ModeIPTables, v1alpha1.ModeIPVS, v1alpha1.ModeIPTables} {
		follow.Again()
		t.byPolicy(policy, mode)
		t.oneByOne(follow, "to mode "+string(mode))
		if mode == v1alpha1.ModeIPVS {
			t.withoutIPTables()
		}
		t.answers(t.visitors[0].Place, "tcp", at(plainIP, 80), "web-1", "web-2", "web-3")
	}
	if err := t.cluster.Client().Delete(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	t.runsMode(v1alpha1.ModeIPVS)
	t.withoutIPTables()
}

// judge ends the load, and fails the test for each connection that failed: also where
// something else has failed before.
func (t test) judge(l *load.Load) {
	t.Helper()
	l.End()
	failures := l.Failures()
	for i, failure := range failures {
		if i < 10 {
			t.Error(failure)
		}
	}
	if len(failures) > 0 {
		load.Lost(t, "%d connections failed", len(failures))
	}
	held, asked := l.Held()
	t.Logf("%d new connections, %d held ones with %d questions, %d failed", l.Total(), held, asked, len(failures))
}

// load makes connections to the fixed Services until the end of the test, by the rules
// of each node.
func (t test) load() *load.Load {
	t.Helper()
	var targets []load.Target
	add := func(name string, from *cluster.Place, network, address string) {
		targets = append(targets, load.Target{Name: name, From: from, Network: network, Address: address})
	}
	outside := t.cluster.Outside()
	for i, node := range t.cluster.Nodes() {
		add("cluster IP", t.visitors[i].Place, "tcp", at(plainIP, 80))
		add("cluster IP", node.Place, "tcp", at(plainIP, 80))
		add("node port", outside, "tcp", node.AddressPort(plainPort))
	}
	for _, i := range []int{0, 2} {
		add("cluster IP", t.visitors[i].Place, "udp", at(plainIP, 80))
		add("load balancer", t.visitors[i].Place, "tcp", at(balancerIP, 80))
	}
	add("IPv6", t.visitors[1].Place, "tcp", at(plainIP6, 80))
	add("load balancer", outside, "tcp", at(balancerIP, 80))
	add("node port of another node", t.visitors[0].Place, "tcp", t.cluster.Node(1).AddressPort(plainPort))
	l, err := load.Start(t.Context(), pace, targets)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.End)
	return l
}

// byPolicy has a policy, which may not be there yet, ask for a mode on all nodes, and
// waits until they run it and the policy reports it.
func (t test) byPolicy(policy *v1alpha1.NodeProxyPolicy, mode v1alpha1.ProxyMode) {
	t.Helper()
	if _, err := controllerutil.CreateOrUpdate(t.Context(), t.cluster.Client(), policy, func() error {
		policy.Spec.Settings.Mode = &mode
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	nodes := len(t.cluster.Nodes())
	if err := install.Until(t.Context(), time.Duration(nodes)*limit, func(ctx context.Context) error {
		return rollouts.Applied(ctx, t.cluster.Client(), policy.Name, int32(nodes)) //nolint:gosec // few
	}); err != nil {
		t.Fatal(err)
	}
	t.runsMode(mode)
}

// oneByOne wants that a change has come to each node, and to one after the other.
func (t test) oneByOne(follow *rollouts.Follower, change string) {
	t.Helper()
	story, err := follow.Story(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := story.OneByOne(); err != nil || len(story.Given) != len(t.cluster.Nodes()) {
		t.Errorf("%s, by way of %q: %v", change, story.Order(), err)
	}
	t.Logf("%s by way of %q", change, story.Order())
}

// runsMode waits until all nodes run a mode and have the desired state.
func (t test) runsMode(mode v1alpha1.ProxyMode) {
	t.Helper()
	for _, node := range t.cluster.Nodes() {
		t.status(node, func(s *v1alpha1.NodeProxyRulesStatus) error {
			if s.Mode != mode {
				return fmt.Errorf("it runs %s, want %s", s.Mode, mode)
			}
			// Agents recognize the device that they make as their own.
			if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionConflictingProxy); c != nil && c.Status == metav1.ConditionTrue {
				return errors.New(c.Message)
			}
			return nil
		})
	}
	t.until(t.programmed)
}

// withoutIPTables waits until no node has anything of mode IPTables.
func (t test) withoutIPTables() {
	t.Helper()
	for _, node := range t.cluster.Nodes() {
		t.noTraces(node, iptablesTraces)
	}
}

// ipvsTraces reports whether a line of state is of mode IPVS alone: a virtual or
// a real server, an address, an ipset, a chain, or a rule.
func ipvsTraces(line string) bool {
	for _, begin := range []string{"-A -", "-a -", "kube-ipvs0 ", "add ", "create ", ":KUBE-IPVS-", ":KUBE-LOAD-BALANCER", ":KUBE-SOURCE-RANGES"} {
		if strings.HasPrefix(line, begin) {
			return true
		}
	}
	return line == ":KUBE-NODE-PORT" || strings.Contains(line, "--match-set")
}

// iptablesTraces reports whether a line of state is of mode IPTables alone.
func iptablesTraces(line string) bool {
	for _, mark := range []string{"KUBE-SVC-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SVL-", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"} {
		if strings.Contains(line, mark) {
			return true
		}
	}
	return false
}

// noTraces waits until no line of a node's state is a trace.
func (t test) noTraces(node *cluster.Node, trace func(line string) bool) {
	t.Helper()
	if err := install.Until(t.Context(), remembered, func(ctx context.Context) error {
		all, err := state(ctx, node)
		if err != nil {
			return err
		}
		var left []string
		for _, line := range all {
			if trace(line) {
				left = append(left, line)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("%s still has %q", node.Name(), left)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

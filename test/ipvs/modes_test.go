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

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// pace is how many connections are begun each second.
const pace = 20

// remembered is how long IPVS remembers connections that have ended in good order, two
// minutes, and what it takes to see that besides.
const remembered = 2*time.Minute + limit

// TestModeSwitch changes the mode there and back while connections are made and
// others are held. None fails, and mode IPTables leaves nothing. What is left of mode
// IPVS waits for the connections: that it goes then is for TestWithoutIPVS.
func TestModeSwitch(tt *testing.T) {
	t := use(tt)
	t.restore()
	l := t.load()
	t.switchMode(v1alpha1.ModeIPTables)
	t.answers(t.visitors[0].Place, "tcp", at(plainIP, 80), "web-1", "web-2", "web-3")
	t.switchMode(v1alpha1.ModeIPVS)
	for _, node := range t.cluster.Nodes() {
		t.noTraces(node, iptablesTraces)
	}
	t.answers(t.visitors[0].Place, "tcp", at(plainIP, 80), "web-1", "web-2", "web-3")
	l.End()
	for _, failure := range l.Failures() {
		t.Error(failure)
	}
	held, asked := l.Held()
	t.Logf("%d new connections, %d held ones with %d questions, %d failed", l.Total(), held, asked, len(l.Failures()))
}

// load makes connections to the fixed Services until the end of the test.
func (t test) load() *load.Load {
	t.Helper()
	var targets []load.Target
	for _, from := range []*cluster.Place{t.visitors[0].Place, t.visitors[1].Place, t.cluster.Outside()} {
		for _, address := range []string{at(plainIP, 80), at(balancerIP, 80), t.cluster.Node(1).AddressPort(plainPort)} {
			targets = append(targets, load.Target{Name: address, From: from, Network: "tcp", Address: address})
		}
	}
	targets = append(targets, load.Target{Name: "cluster IP", From: t.visitors[0].Place, Network: "udp", Address: at(plainIP, 80)},
		load.Target{Name: "IPv6", From: t.visitors[1].Place, Network: "tcp", Address: at(plainIP6, 80)},
		load.Target{Name: "cluster IP", From: t.cluster.Node(0).Place, Network: "tcp", Address: at(plainIP, 80)})
	l, err := load.Start(t.Context(), pace, targets)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.End)
	return l
}

// switchMode changes the mode of all nodes and waits until they run it.
func (t test) switchMode(mode v1alpha1.ProxyMode) {
	t.Helper()
	t.change(fmt.Sprintf(`"mode":%q`, mode))
	for _, node := range t.cluster.Nodes() {
		t.status(node, func(s *v1alpha1.NodeProxyRulesStatus) error {
			if s.Mode != mode {
				return fmt.Errorf("it runs %s, want %s", s.Mode, mode)
			}
			// Agents take the device that they make themselves for nobody else's.
			if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionConflictingProxy); c != nil && c.Status == metav1.ConditionTrue {
				return errors.New(c.Message)
			}
			return nil
		})
	}
	t.until(t.programmed)
}

// ipvsTraces tells of a line of state whether it is of mode IPVS alone: a virtual or
// a real server, an address, an ipset, a chain, or a rule.
func ipvsTraces(line string) bool {
	for _, begin := range []string{"-A -", "-a -", "kube-ipvs0 ", "add ", "create ", ":KUBE-IPVS-", ":KUBE-LOAD-BALANCER", ":KUBE-SOURCE-RANGES"} {
		if strings.HasPrefix(line, begin) {
			return true
		}
	}
	return line == ":KUBE-NODE-PORT" || strings.Contains(line, "--match-set")
}

// iptablesTraces tells of a line of state whether it is of mode IPTables alone.
func iptablesTraces(line string) bool {
	for _, sign := range []string{"KUBE-SVC-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SVL-", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"} {
		if strings.Contains(line, sign) {
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

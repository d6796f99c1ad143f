package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// The controller looks at the Leases every 10 s. It may therefore see the last renewal
// 10 s late, and the end of the 90 s after that another 10 s; the rest is for
// writing it on a busy machine.
const reportedWithin = (90 + 10 + 10 + 15) * time.Second

// A node that is cut off for two minutes, in silence, is reported and counted,
// and reads True again when it is back, with no rule written.
func TestCutOffForTwoMinutes(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.startAgent()
	e.programmed()
	e.until(e.leased) // the first renewal comes after the first status, and the cut may not come between
	rules := e.rules()

	drop := func(do string) {
		_, err := e.nodeproxy.Cluster.ControlPlane().Exec(t.Context(), "iptables-nft", "-w", do, "INPUT", "-s", e.node.Address(), "-p", "tcp", "--dport", "6443", "-j", "DROP")
		if err != nil {
			t.Fatal(err)
		}
	}
	drop("-I")
	cut := time.Now()
	since := func() time.Duration { return time.Since(cut).Round(100 * time.Millisecond) }
	e.within(reportedWithin, func(ctx context.Context) error {
		return e.summary(ctx, 1, "no heartbeat for 1m30s")
	})
	reported := since()
	if reported < 60*time.Second { // the Lease may be 30 s old by now, and no more
		t.Errorf("reported after %s", reported)
	}
	e.expect(v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, v1alpha1.ReasonAgentNotResponding, "No heartbeat from the agent since")
	e.within(150*time.Second, func(context.Context) error {
		if since() < 2*time.Minute {
			return errors.New("two minutes are not over")
		}
		return nil
	})
	drop("-D")
	cut = time.Now()
	// A dial that has begun ends within 5 s, the agent's watches pause for 16 s at
	// most, and its status for 30 s: less than the minute that is allowed.
	e.programmed()
	e.within(20*time.Second, func(ctx context.Context) error { return e.summary(ctx, 0, "") })
	t.Logf("cut off: reported after %s; back: programmed and counted again after %s", reported, since())
	// The Lease follows, so it stays so.
	e.within(40*time.Second, func(ctx context.Context) error {
		if since() < 20*time.Second {
			return errors.New("20 s are not over")
		}
		return e.summary(ctx, 0, "")
	})
	if now := e.rules(); !slices.Equal(now, rules) {
		t.Errorf("rules were written: %d before, %d now", len(rules), len(now))
	}
}

// leased returns nil when the agent has renewed its Lease.
func (e *env) leased(ctx context.Context) error {
	key := client.ObjectKey{Namespace: install.Namespace, Name: v1alpha1.AgentLeaseName(e.node.Name())}
	return e.nodeproxy.Cluster.Client().Get(ctx, key, &coordinationv1.Lease{})
}

// within waits for as long as limit until f returns nil.
func (e *env) within(limit time.Duration, f func(ctx context.Context) error) {
	e.Helper()
	if err := install.Until(e.Context(), limit, f); err != nil {
		e.Fatal(err)
	}
}

// summary returns nil when the NodeProxy counts as many stale nodes, and its
// condition Ready reports text.
func (e *env) summary(ctx context.Context, stale int32, text string) error {
	np := &v1alpha1.NodeProxy{}
	if err := e.nodeproxy.Cluster.Client().Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, np); err != nil {
		return err
	}
	ready := meta.FindStatusCondition(np.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || np.Status.Nodes.Stale != stale || !strings.Contains(ready.Message, text) {
		return fmt.Errorf("nodes %+v, Ready %+v", np.Status.Nodes, ready)
	}
	return nil
}

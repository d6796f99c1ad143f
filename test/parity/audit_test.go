package parity

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// auditWorldsVariable is the number of worlds of TestAuditBesideKubeProxy.
const auditWorldsVariable = "PARITY_AUDIT_WORLDS"

// calm is for how long a node must report no difference after a step: longer
// than a difference must last to count.
const calm = 8 * time.Second

// TestAuditBesideKubeProxy runs the agent with enforcement Audit on kube-proxy's
// own node, in worlds as they are drawn for TestSideBySide: what kube-proxy has
// by intention besides must not count, and nothing else may differ.
func TestAuditBesideKubeProxy(t *testing.T) {
	if err := cluster.Check(); err != nil {
		t.Skip(err)
	}
	count, steps := variable(t, auditWorldsVariable, 2), 2
	seed := variable(t, seedVariable, 1)
	p := startPair(t)
	p.tested = p.reference
	wr := worlds.NewWriter(p.nodeproxy.Cluster.Client())
	if err := worlds.MakeNamespaces(t.Context(), p.nodeproxy.Cluster.Client()); err != nil {
		t.Fatal(err)
	}
	for i := range count {
		w := worlds.New(uint64(seed + i)) //nolint:gosec // a seed
		t.Run(fmt.Sprintf("world %d", seed+i), func(t *testing.T) {
			r := &run{T: t, pair: p, writer: wr, world: w, limit: time.Minute, met: map[string]int{}}
			r.audited(steps)
		})
	}
}

// audited lives through a world as live does.
func (r *run) audited(steps int) {
	w, ctx := r.world, r.Context()
	if err := r.stop(ctx, startClean); err != nil {
		r.Fatal(err)
	}
	if err := r.writer.Begin(ctx, w); err != nil {
		r.Fatal(err)
	}
	np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"settings":{"enforcement":"Audit"}}}`))
	if err := r.nodeproxy.Cluster.Client().Patch(ctx, np, patch); err != nil {
		r.Fatal(err)
	}
	shuffle := worlds.NewDice(w.Seed).Rand
	r.write(shuffle)
	if err := r.pair.start(w.Settings); err != nil {
		r.Fatal(err)
	}
	r.inSync("as drawn")
	for step := 1; step <= steps; step++ {
		var done []string
		if step == 1 {
			done = append(done, w.ChangeZone())
		}
		for range w.Between(1, 4) {
			done = append(done, w.Change())
		}
		r.write(shuffle)
		r.inSync(fmt.Sprintf("step %d: %q", step, done))
	}
}

// inSync waits until the node reports no difference and has not for a while.
func (r *run) inSync(what string) {
	r.Helper()
	r.world.Log = append(r.world.Log, what)
	ctx, cancel := context.WithTimeout(r.Context(), r.limit)
	defer cancel()
	since, last := time.Now(), ""
	for time.Since(since) < calm {
		if err := r.running(); err != nil {
			r.Fatal(err)
		}
		rules := &v1alpha1.NodeProxyRules{}
		now := ""
		if err := r.nodeproxy.Cluster.Client().Get(ctx, client.ObjectKey{Name: worlds.NodeName}, rules); err != nil {
			now = err.Error()
		} else if c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed); c == nil {
			now = "not reported yet"
		} else if d := rules.Status.Difference; c.Reason != v1alpha1.ReasonAuditInSync || d == nil || d.Count != 0 {
			now = fmt.Sprintf("%s: %s; difference %+v", c.Reason, c.Message, d)
		}
		if now != "" {
			since, last = time.Now(), now
		}
		select {
		case <-ctx.Done():
			r.Fatalf("%s: not without difference for %s within %s; last: %s\nnodeproxy-agent, %s\n%s", what, calm, r.limit, last, r.testedP.Tail(), r.repeat())
		case <-time.After(100 * time.Millisecond):
		}
	}
	if last != "" {
		r.Logf("%s: before, for a moment: %s", what, last)
	}
}

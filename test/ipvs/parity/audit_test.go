package parity

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// calm is for how long a node must report no difference: longer than a difference must
// last to count.
const calm = 8 * time.Second

// TestAuditBesideKubeProxy runs the agent with enforcement Audit on kube-proxy's own
// node: nothing may differ in a world in which kube-proxy does all that we do, and what
// it does otherwise by intention is told.
func TestAuditBesideKubeProxy(t *testing.T) {
	p := use(t)
	p.tested = p.reference
	seed := uint64(variable(t, seedVariable, 0)) //nolint:gosec // a seed
	w := worlds.NewIPVS(seed)
	w.Settings, w.Audit = worlds.PlainIPVS(), true
	w.OnlyCluster()
	r := &run{T: t, pair: p, world: w, limit: limit}
	if err := p.writer.Begin(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	shuffle := worlds.NewDice(seed).Rand
	if _, err := p.write(t.Context(), w, shuffle); err != nil {
		t.Fatal(err)
	}
	if err := p.start(w.Settings); err != nil {
		t.Fatal(err)
	}
	r.reports("without policy Local", calm, func(reason string, count int32) bool {
		return reason == v1alpha1.ReasonAuditInSync && count == 0
	})
	w.MarkLocal = true
	if _, err := p.write(t.Context(), w, shuffle); err != nil {
		t.Fatal(err)
	}
	if err := p.start(w.Settings); err != nil {
		t.Fatal(err)
	}
	r.reports("with a Service without a local endpoint", 0, func(reason string, count int32) bool {
		return reason == v1alpha1.ReasonAuditDiffers && count > 0
	})
}

// reports waits until the node has reported what is right for some time.
func (r *run) reports(what string, calm time.Duration, right func(reason string, count int32) bool) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), r.limit)
	defer cancel()
	since, last := time.Now(), ""
	for {
		if err := r.running(); err != nil {
			r.Fatal(err)
		}
		rules := &v1alpha1.NodeProxyRules{}
		now := ""
		if err := r.nodeproxy.Cluster.Client().Get(ctx, client.ObjectKey{Name: worlds.NodeName}, rules); err != nil {
			now = err.Error()
		} else if c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed); c == nil {
			now = "not reported yet"
		} else if d := rules.Status.Difference; d == nil || !right(c.Reason, d.Count) {
			now = fmt.Sprintf("%s: %s; difference %+v", c.Reason, c.Message, d)
		} else {
			last = fmt.Sprintf("%s: %s; difference %+v", c.Reason, c.Message, d)
		}
		if now != "" && ctx.Err() == nil {
			since, last = time.Now(), now
		} else if ctx.Err() == nil && time.Since(since) >= calm {
			r.Logf("%s: %s", what, last)
			return
		}
		select {
		case <-ctx.Done():
			r.Fatalf("%s: not as it has to be within %s; last: %s\n%s\n%s", what, r.limit, last, r.tails(), r.repeat())
		case <-time.After(5 * pause):
		}
	}
}

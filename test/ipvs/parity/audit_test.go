package parity

import (
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/parity/beside"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// TestAuditBesideKubeProxy runs the agent with enforcement Audit on kube-proxy's own node. It
// must report no difference in a world in which kube-proxy does the same, and report an
// intended one.
func TestAuditBesideKubeProxy(t *testing.T) {
	p := use(t)
	p.ShareNode()
	w := worlds.NewIPVS(firstWorld)
	w.Settings, w.Audit = worlds.PlainIPVS(), true
	w.OnlyCluster()
	r := &run{T: t, pair: p, world: w, limit: limit}
	if err := p.Writer.Begin(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	shuffle := worlds.NewDice(firstWorld).Rand
	if _, err := p.write(t.Context(), w, shuffle); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(w.Settings); err != nil {
		t.Fatal(err)
	}
	r.reports("without policy Local", beside.Calm, func(reason string, count int32) bool {
		return reason == v1alpha1.ReasonAuditInSync && count == 0
	})
	w.MarkLocal = true
	if _, err := p.write(t.Context(), w, shuffle); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(w.Settings); err != nil {
		t.Fatal(err)
	}
	r.reports("with a Service without a local endpoint", 0, func(reason string, count int32) bool {
		return reason == v1alpha1.ReasonAuditDiffers && count > 0
	})
}

// reports waits until the node's reports have been right for some time.
func (r *run) reports(what string, calm time.Duration, right func(reason string, count int32) bool) {
	r.Helper()
	report, err := r.Reports(r.Context(), r.limit, calm, right)
	if err != nil {
		r.Fatalf("%s: %v\n%s\n%s", what, err, r.Tails(), r.repeat())
	}
	r.Logf("%s: %s", what, report)
}

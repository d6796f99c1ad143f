package parity

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/parity/beside"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// auditWorldsVariable is the number of worlds of TestAuditBesideKubeProxy.
const auditWorldsVariable = "PARITY_AUDIT_WORLDS"

// TestAuditBesideKubeProxy runs the agent with enforcement Audit on kube-proxy's
// own node, in worlds as they are drawn for TestSideBySide: what kube-proxy has
// by intention besides must not count, and nothing else may differ.
func TestAuditBesideKubeProxy(t *testing.T) { auditBeside(t, func(*worlds.World) {}) }

// TestAuditBesideKubeProxyNFTables is the same in mode nftables, where both have tables of their own:
// the agent compares what becomes of packets.
func TestAuditBesideKubeProxyNFTables(t *testing.T) {
	auditBeside(t, func(w *worlds.World) { w.Settings.NFTables = true })
}

// auditBeside lives through worlds that edit has changed.
func auditBeside(t *testing.T, edit func(*worlds.World)) {
	t.Helper()
	if err := cluster.Check(); err != nil {
		t.Skip(err)
	}
	selection, steps := beside.Selection{First: firstWorld, Fixed: beside.Variable(t, auditWorldsVariable, 1, 2)}, 2
	p := startPair(t)
	p.ShareNode()
	beside.EachWorld(t, selection, func(t *testing.T, seed uint64, _ bool) {
		r := &run{T: t, pair: p, world: worlds.New(seed), limit: time.Minute}
		edit(r.world)
		r.audited(steps)
	})
}

// audited lives through a world as live does.
func (r *run) audited(steps int) {
	w, ctx := r.world, r.Context()
	if err := r.stop(ctx, startClean); err != nil {
		r.Fatal(err)
	}
	if err := r.Writer.Begin(ctx, w); err != nil {
		r.Fatal(err)
	}
	np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"settings":{"enforcement":"Audit"}}}`))
	if err := r.Nodeproxy.Cluster.Client().Patch(ctx, np, patch); err != nil {
		r.Fatal(err)
	}
	shuffle := worlds.NewDice(w.Seed).Rand
	r.write(shuffle)
	if err := r.start(ctx, w.Settings); err != nil {
		r.Fatal(err)
	}
	r.inSync("as drawn")
	for step := 1; step <= steps; step++ {
		done := r.change(step)
		r.write(shuffle)
		r.inSync(fmt.Sprintf("step %d: %q", step, done))
	}
	// What kube-proxy no longer writes differs: the agent has looked up to here.
	if err := r.KubeProxy.Freeze(); err != nil {
		r.Fatal(err)
	}
	done := r.change(steps + 1)
	r.write(shuffle)
	r.reports(fmt.Sprintf("without kube-proxy: %q", done), 0, func(reason string, count int32) bool {
		return reason == v1alpha1.ReasonAuditDiffers && count > 0
	})
}

// inSync waits until the node reports no difference and has not for a while.
func (r *run) inSync(what string) {
	r.Helper()
	r.reports(what, beside.Calm, func(reason string, count int32) bool {
		return reason == v1alpha1.ReasonAuditInSync && count == 0
	})
}

// reports waits until the node's reports have been right for some time.
func (r *run) reports(what string, calm time.Duration, right func(reason string, count int32) bool) {
	r.Helper()
	r.world.Log = append(r.world.Log, what)
	reported, err := r.Reports(r.Context(), r.limit, calm, right)
	if err != nil {
		r.Fatalf("%s: %v\n%s\n%s", what, err, r.Tails(), r.repeat())
	}
	r.Logf("%s: %s", what, reported)
}

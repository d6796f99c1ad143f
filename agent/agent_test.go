package agent

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// inTurn returns an agent that may write a set of one Service, but whose loop
// does not run.
func inTurn(t *testing.T) (*Agent, *rig, *dataplanetest.Fake, *logged) {
	t.Helper()
	a, kernel, log := newAgent(t, (&answers{list: []string{""}}).probe)
	r := fill(t, a)
	a.turn = true
	return a, r, kernel, log
}

func mustSync(t *testing.T, a *Agent) {
	t.Helper()
	if err := a.sync(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// syncs counts the syncs of each kind by the metrics.
func syncs(t *testing.T, a *Agent) map[string]uint64 {
	t.Helper()
	families, err := a.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]uint64{}
	for _, family := range families {
		if family.GetName() != "nodeproxy_agent_sync_duration_seconds" {
			continue
		}
		for _, m := range family.GetMetric() {
			counts[m.GetLabel()[0].GetValue()] = m.GetHistogram().GetSampleCount()
		}
	}
	return counts
}

func TestSyncKindIsWhatTheDataPlaneDid(t *testing.T) {
	a, r, kernel, _ := inTurn(t)
	mustSync(t, a)
	r.setService(r.object("b", 2))
	mustSync(t, a)
	if got := a.store.snapshot(); got.applied.lastSync.Kind != v1alpha1.SyncPartial || got.kernel.chains != 1 {
		t.Errorf("a partial sync is %s, with %d chains of the last full one", got.applied.lastSync.Kind, got.kernel.chains)
	}
	kernel.Doubt()
	r.setService(r.object("c", 3))
	mustSync(t, a)
	if got := a.store.snapshot(); got.applied.lastSync.Kind != v1alpha1.SyncFull || got.kernel.chains != 3 {
		t.Errorf("a sync that was full unasked is %s, with %d chains", got.applied.lastSync.Kind, got.kernel.chains)
	}
	if diff := cmp.Diff(map[string]uint64{"Full": 2, "Partial": 1}, syncs(t, a)); diff != "" {
		t.Errorf("syncs by kind (-want +got):\n%s", diff)
	}
}

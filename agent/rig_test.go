package agent

import (
	"context"
	"strings"
	"testing"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// rig is a desired state with a kernel behind it, and a clock that the test moves.
type rig struct {
	*desired.Store
	agenttest.Objects
	t      *testing.T
	clock  *clocktesting.FakePassiveClock
	kernel *dataplanetest.Fake
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, clock: clocktesting.NewFakePassiveClock(agenttest.Epoch), kernel: dataplanetest.NewFake()}
	r.Store = desired.New(desired.Options{Clock: r.clock, NodeName: "node-1", Families: []dataplane.Family{dataplane.IPv4}, Report: func(dataplane.ServiceName, string) {}})
	return r
}

// prepare is what the sync loop does before an Apply, on a node that can run any mode.
func prepare(s *desired.Store) desired.Batch {
	if q := s.OpenQuestion(); q != nil && !s.ContinueMode(q) {
		s.SettleMode(q, desired.Verdict{})
	}
	s.Choose(true)
	b, _ := s.PrepareWrite(nil)
	return b
}

// SetInventory has a NodeProxy show it; nil: there is no NodeProxy.
func (r *rig) SetInventory(inventory *v1alpha1.Inventory) {
	if inventory == nil {
		r.SetProxy(nil)
		return
	}
	r.SetProxy(&v1alpha1.NodeProxy{Status: v1alpha1.NodeProxyStatus{Inventory: inventory}})
}

// object is the only Service that there is.
func (r *rig) object() *v1alpha1.ServiceProxyRules { return r.CompleteSet().Services[0] }

// sync does what the sync loop does, and returns what was to be done.
func (r *rig) sync() string {
	r.t.Helper()
	if !r.Ready() {
		return "not ready"
	}
	b := prepare(r.Store)
	reported := agenttest.Describe(b.Rulesets[dataplane.IPv4])
	outcomes := dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: r.kernel}).Apply(context.Background(), b.Rulesets)
	r.Commit(b, outcomes, &v1alpha1.SyncReport{})
	return reported
}

func (r *rig) expectSync(want string) {
	r.t.Helper()
	if got := r.sync(); got != want {
		r.t.Errorf("sync: got %q, want %q", got, want)
	}
}

func (r *rig) mustRestore(g *checkpoint.Restorable) {
	r.t.Helper()
	if used, err := r.Restore(g); err != nil || !used {
		r.t.Fatalf("not restored: %v, %v", used, err)
	}
}

// clusterList are the endpoints of a Service's first port for traffic under policy Cluster.
func clusterList(svc *dataplane.Service) string {
	if svc == nil {
		return "none"
	}
	var out []string
	for _, e := range svc.Ports[0].Cluster {
		out = append(out, e.String())
	}
	return strings.Join(out, " ")
}

package agent

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/agent/syncer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// owningAgent returns an agent that may write a set of one Service, but whose loop
// does not run.
func owningAgent(t *testing.T) (*Agent, *rig, *dataplanetest.Fake, *agenttest.Log) {
	t.Helper()
	a, kernel, log := newAgent(t, (&answers{list: []string{""}}).probe)
	r := fill(t, a)
	hold(t, a)
	return a, r, kernel, log
}

func mustSync(t *testing.T, a *Agent) {
	t.Helper()
	if err := a.sync(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// syncs counts the syncs of each kind by the metrics.
func syncs(t *testing.T, a *Agent) map[string]float64 {
	t.Helper()
	return map[string]float64{
		"Full":    values(t, a, "kubeproxy_sync_full_proxy_rules_duration_seconds")["IPv4"],
		"Partial": values(t, a, "kubeproxy_sync_partial_proxy_rules_duration_seconds")["IPv4"],
	}
}

func TestSyncKindIsWhatTheDataPlaneDid(t *testing.T) {
	a, r, kernel, _ := owningAgent(t)
	mustSync(t, a)
	r.SetService(r.Service("b", 2))
	mustSync(t, a)
	if got := a.store.Snapshot(); got.Applied.LastSync.Kind != v1alpha1.SyncPartial || got.Kernel.Counts[dataplane.Chains] != 1 {
		t.Errorf("a partial sync is %s, with %d chains of the last full one", got.Applied.LastSync.Kind, got.Kernel.Counts[dataplane.Chains])
	}
	kernel.Doubt()
	r.SetService(r.Service("c", 3))
	mustSync(t, a)
	if got := a.store.Snapshot(); got.Applied.LastSync.Kind != v1alpha1.SyncFull || got.Kernel.Counts[dataplane.Chains] != 3 {
		t.Errorf("a sync that was full unasked is %s, with %d chains", got.Applied.LastSync.Kind, got.Kernel.Counts[dataplane.Chains])
	}
	if diff := cmp.Diff(map[string]float64{"Full": 2, "Partial": 1}, syncs(t, a)); diff != "" {
		t.Errorf("syncs by kind (-want +got):\n%s", diff)
	}
}

func TestWarnings(t *testing.T) {
	const forwarding, localnet = "net.ipv4.ip_forward is 0: set it to 1", "route_localnet cannot be set: make /proc/sys writable"
	a, r, kernel, log := owningAgent(t)
	kernel.Warn(localnet, forwarding)
	mustSync(t, a)
	r.SetService(r.Service("b", 2))
	mustSync(t, a)
	c := status.ProgrammedCondition(a.refresh())
	if want := "The desired state is programmed. Restrictions: " + forwarding + "; " + localnet; c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonProgrammed || c.Message != want {
		t.Errorf("condition %+v, want message %q", c, want)
	}
	kernel.Reject("shop", "c", "line 3 failed")
	r.SetService(r.Service("c", 3))
	mustSync(t, a)
	c = status.ProgrammedCondition(a.refresh())
	if c.Reason != v1alpha1.ReasonSomeServicesRejected || !strings.Contains(c.Message, "line 3 failed. Restrictions: "+forwarding) {
		t.Errorf("with a rejected Service: condition %+v", c)
	}
	if lines := log.With(localnet); len(lines) != 1 {
		t.Errorf("the same warnings are logged %d times: %q", len(lines), lines)
	}
	kernel.Fail(errors.New("locked"))
	r.SetService(r.Service("d", 4))
	if err := a.sync(context.Background()); err == nil {
		t.Fatal("no error")
	}
	if c = status.ProgrammedCondition(a.refresh()); strings.Contains(c.Message, "but:") {
		t.Errorf("a failure is not the place for warnings: %+v", c)
	}
	kernel.Fail(nil)
	kernel.Warn(forwarding)
	mustSync(t, a)
	kernel.Warn()
	r.SetService(r.Service("e", 5))
	mustSync(t, a)
	if lines := log.With(forwarding); len(lines) != 2 || strings.Contains(lines[1], localnet) {
		t.Errorf("other warnings are to be logged again: %q", lines)
	}
	if len(log.With("is done now")) != 1 {
		t.Errorf("the end of the warnings is not logged: %q", log.With(""))
	}
}

func TestVerificationEndsWarnings(t *testing.T) {
	a, _, kernel, _ := owningAgent(t)
	kernel.Warn("x cannot be set")
	mustSync(t, a)
	kernel.Warn()
	if err := a.verify(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := a.store.Notices().Warnings; len(got) != 0 {
		t.Errorf("what works by now is still warned of: %q", got)
	}
}

func TestVerificationFindsWarnings(t *testing.T) {
	a, _, kernel, _ := owningAgent(t)
	mustSync(t, a)
	kernel.Warn("the kubelet uses another variant")
	if err := a.verify(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := a.store.Notices().Warnings; len(got) != 1 {
		t.Errorf("what is wrong since the last write is not reported: %q", got)
	}
}

func TestNoteObjectDoesNotGoBack(t *testing.T) {
	a, r, _, _ := owningAgent(t)
	done := make(chan struct{})
	a.mu.Lock() // as while another watch notes something
	go func() { defer close(done); a.noteObject() }()
	waitForLock(t, "noteObject")
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.Settings.Sync.MinIntervalMilliseconds = new(int32(777)) }))
	a.mu.Unlock()
	<-done
	if got := *a.settings.Sync.MinIntervalMilliseconds; got != 777 {
		t.Errorf("noted minIntervalMilliseconds %d, of a state older than the newest", got)
	}
}

// waitForLock waits until a goroutine waits for a mutex in function.
func waitForLock(t *testing.T, function string) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "[sync.Mutex.Lock") && strings.Contains(stack, "."+function+"(") {
				return
			}
		}
	}
	t.Fatalf("no goroutine waits for a mutex in %s", function)
}

func TestOnlyPendingChangesRunTheLoop(t *testing.T) {
	inventory := func(names ...string) func(*rig) {
		return func(r *rig) { r.SetInventory(agenttest.InventoryOf(names...)) }
	}
	for _, tt := range []struct {
		name  string
		event func(*rig)
		want  bool
	}{
		{"the status of the NodeProxy, with the same inventory", inventory("shop.a"), false},
		{"an inventory of another Service", inventory("shop.a", "shop.b"), false},
		{"no NodeProxy", func(r *rig) { r.SetInventory(nil) }, false},
		{"the own object's status", func(r *rig) { r.SetRules(r.Snapshot().Own.DeepCopy()) }, false},
		{"the own object is gone", func(r *rig) { r.MissRules() }, false},
		{"the own object with another generation", func(r *rig) { r.SetRules(r.Node()) }, true},
		{"a new Service", func(r *rig) { r.SetService(r.Service("b", 2)) }, true},
		{"another version of a Service alone", func(r *rig) {
			o := r.object().DeepCopy()
			o.ResourceVersion = "99"
			r.SetService(o)
		}, true},
		{"the same list again", func(r *rig) {
			r.SetServices([]*v1alpha1.ServiceProxyRules{r.object()})
		}, false},
		{"the inventory agrees with a list without a vanished Service", func(r *rig) {
			r.DeleteService(r.object())
			r.TakePending()
			inventory()(r)
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, r, _, _ := owningAgent(t)
			a.changed() // the first settings
			mustSync(t, a)
			// A loop that does not run is overdue once it is triggered.
			clk := clocktesting.NewFakeClock(agenttest.Epoch)
			a.loop = syncer.New(syncer.Options{Clock: clk, Sync: a.syncSome, Verify: a.verify, VerifyInterval: time.Hour})
			tt.event(r)
			a.changed()
			clk.Step(time.Second)
			if got := a.loop.Overdue() > 0; got != tt.want {
				t.Errorf("the loop has to run: %v, want %v", got, tt.want)
			}
		})
	}
}

func TestAnEmptyFirstListMakesTheLoopRun(t *testing.T) {
	r := newRig(t)
	r.SetRules(r.Node())
	r.TakePending()
	r.SetServices(nil)
	if !r.Ready() || !r.TakePending() {
		t.Error("the agent is ready, but nothing syncs")
	}
	r.SetServices(nil)
	if r.TakePending() {
		t.Error("a second empty list is a pending change")
	}
}

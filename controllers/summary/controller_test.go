package summary

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
)

// noServices are the Services of a cluster that has none.
type noServices struct{ services }

func (noServices) Unrendered() []v1alpha1.UnrenderedService { return nil }
func (noServices) Delayed() []types.NamespacedName          { return nil }
func (noServices) CurrentTerm() int                         { return 1 }

type noneLags struct{}

func (noneLags) Lagging() ([]string, bool) { return nil, true }

type noEvents struct{ recorder }

func (noEvents) Transition(*v1alpha1.NodeProxy, events.Kind, string) {}

// TestCountsWait: what all agents receive is written at once if a condition or the inventory changes, but less often the
// more agents there are if only counts do.
func TestCountsWait(t *testing.T) {
	scheme, err := objects.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName, Generation: 1}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(np).WithStatusSubresource(np, &v1alpha1.NodeProxyRules{}).Build()
	clk := testclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	r := &Reconciler{
		Client: c, Clock: clk, Metrics: metrics.New(prometheus.NewRegistry()), Services: noServices{}, Liveness: noneLags{},
		Findings: reports.NewFindings(func() {}), Events: noEvents{},
	}
	pass := func() time.Duration {
		t.Helper()
		result, err := r.Reconcile(t.Context(), ctrl.Request{})
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter
	}
	node := func(name string, status metav1.ConditionStatus) {
		t.Helper()
		rules := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := client.IgnoreAlreadyExists(c.Create(t.Context(), rules)); err != nil {
			t.Fatal(err)
		}
		rules.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Status: status, Reason: v1alpha1.ReasonProgrammed, LastTransitionTime: metav1.NewTime(clk.Now())}}
		if err := c.Status().Update(t.Context(), rules); err != nil {
			t.Fatal(err)
		}
	}
	total := func() int {
		t.Helper()
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(np), np); err != nil {
			t.Fatal(err)
		}
		return int(np.Status.Nodes.Total)
	}

	for i := range 500 {
		node(fmt.Sprint("n", i), metav1.ConditionTrue)
	}
	pass()
	if total() != 500 {
		t.Error("the first change is not written at once")
	}
	clk.Step(time.Second)
	node("a", metav1.ConditionTrue)
	if wait := pass(); total() != 500 || wait != 4010*time.Millisecond {
		t.Errorf("1 s after a write, a count is written, or looked at after %s", wait)
	}
	clk.Step(4010 * time.Millisecond)
	pass()
	if total() != 501 {
		t.Error("the count is not written after 10 ms for each node")
	}
	clk.Step(time.Second)
	node("b", metav1.ConditionFalse)
	pass()
	if total() != 502 {
		t.Error("a change of Ready is not written at once")
	}
}

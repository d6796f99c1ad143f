package nodes

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

func TestLeftOut(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := metrics.New(registry)
	m.Lead(true)
	l := NewLeftOut(m)
	metric := func() float64 { return controllertest.Gauges(t, registry, "left_out_local_endpoints")[0] }
	a, b := types.NamespacedName{Namespace: "x", Name: "a"}, types.NamespacedName{Namespace: "x", Name: "b"}
	for i, c := range []struct {
		node       string
		out        []types.NamespacedName
		eventAdded bool
		want       []types.NamespacedName // that no event names
		ended      []types.NamespacedName
		count      float64
	}{
		{node: "n1"},
		{node: "n1", out: []types.NamespacedName{a, b}, want: []types.NamespacedName{a, b}, count: 2},
		{node: "n1", out: []types.NamespacedName{a, b}, eventAdded: true, want: []types.NamespacedName{a, b}, count: 2},
		{node: "n2", out: []types.NamespacedName{b}, count: 3},
		{node: "n1", out: []types.NamespacedName{a}, count: 2},
		{node: "n1", ended: []types.NamespacedName{a}, count: 1},
		{node: "n1", out: []types.NamespacedName{a, b}, want: []types.NamespacedName{a}, count: 3}, // b was all the time
		{node: "n2", count: 2},
		{node: "n1", ended: []types.NamespacedName{a, b}},
	} {
		withoutEvent, ended := l.set(c.node, leftOutOf(c.out))
		if diff := cmp.Diff(leftOutOf(c.want), withoutEvent); diff != "" {
			t.Errorf("step %d: unsaid (-want +got):\n%s", i, diff)
		}
		if diff := cmp.Diff(c.ended, ended); diff != "" {
			t.Errorf("step %d: ended (-want +got):\n%s", i, diff)
		}
		if c.eventAdded {
			for _, out := range withoutEvent {
				l.Reported(out.Service, true)
			}
		}
		if got := metric(); got != c.count {
			t.Errorf("step %d: the metric is %v, want %v", i, got, c.count)
		}
	}
	if len(l.onNode)+len(l.services) > 0 {
		t.Errorf("remembered for nothing: %v, %v", l.onNode, l.services)
	}
	l.Reported(a, true) // gone meanwhile
	l.set("n1", leftOutOf([]types.NamespacedName{a}))
	l.Reported(a, true)
	if withoutEvent, _ := l.set("n1", leftOutOf([]types.NamespacedName{a})); len(withoutEvent) != 0 {
		t.Error("what is reported is reported again")
	}
	l.Reported(a, false)
	if withoutEvent, _ := l.set("n1", leftOutOf([]types.NamespacedName{a})); len(withoutEvent) != 1 {
		t.Error("what was lost is not reported again")
	}
	l.NewTerm()
	if withoutEvent, _ := l.set("n1", leftOutOf([]types.NamespacedName{a})); len(withoutEvent) != 1 {
		t.Error("a new term reports nothing again")
	}
	l.NewTerm()
	if got := metric(); got != 0 {
		t.Errorf("a new term: the metric is %v", got)
	}
	m.Lead(false)
	if got := metric(); got != 0 {
		t.Errorf("while it stands by the metric is %v", got)
	}
}

// countedGets counts the objects that are looked up.
type countedGets struct {
	client.Client
	n int
}

func (c *countedGets) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	c.n++
	return c.Client.Get(ctx, key, o, opts...)
}

// TestLeftOutWithoutService: a Service that slices name but that does not exist is looked up once, and
// has its event if it is created.
func TestLeftOutWithoutService(t *testing.T) {
	p, _, c := newEnqueueRig(t, 1)
	clk, m := clocktesting.NewFakeClock(controllertest.Noon), metrics.New(prometheus.NewRegistry())
	counted := &countedGets{Client: c}
	r := &Reconciler{
		Client: counted, LeftOut: NewLeftOut(m),
		Events: events.NewRecorder(events.NewQueue(leader.Always{}, nil, clk, m), clk),
	}
	var absent []types.NamespacedName
	for i := range 50 {
		absent = append(absent, types.NamespacedName{Namespace: "shop", Name: fmt.Sprintf("s%d", i)})
	}
	list := leftOutOf(absent)
	step := func(what string, want int) {
		t.Helper()
		counted.n = 0
		if !r.reportLeftOut(t.Context(), "node-0", list) {
			t.Errorf("%s: not all are reported", what)
		}
		if counted.n != want {
			t.Errorf("%s: %d Services are looked up, want %d", what, counted.n, want)
		}
	}
	step("initially", 50)
	step("again", 0)
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "s7"}}
	if err := c.Create(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	q := &controllertest.RecordingQueue{Added: map[string][]time.Duration{}}
	affectedNodes{c, p, newOverLimits(c), r.LeftOut}.byPolicy().Create(t.Context(), event.CreateEvent{Object: svc}, q)
	step("created", 1)
	step("reported", 0)
}

func leftOutOf(services []types.NamespacedName) (out []render.LeftOut) {
	for _, s := range services {
		out = append(out, render.LeftOut{Service: s})
	}
	return out
}

package nodes

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

func TestLeftOut(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := metrics.New(registry)
	if err != nil {
		t.Fatal(err)
	}
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
				l.eventAdded(out.Service)
			}
		}
		if got := metric(); got != c.count {
			t.Errorf("step %d: the metric is %v, want %v", i, got, c.count)
		}
	}
	if len(l.onNode)+len(l.services) > 0 {
		t.Errorf("remembered for nothing: %v, %v", l.onNode, l.services)
	}
	l.eventAdded(a) // gone meanwhile
	l.set("n1", leftOutOf([]types.NamespacedName{a}))
	l.eventAdded(a)
	if withoutEvent, _ := l.set("n1", leftOutOf([]types.NamespacedName{a})); len(withoutEvent) != 0 {
		t.Error("what is said is said again")
	}
	l.EventLost(a)
	if withoutEvent, _ := l.set("n1", leftOutOf([]types.NamespacedName{a})); len(withoutEvent) != 1 {
		t.Error("what was lost is not said again")
	}
	l.NewTerm()
	if withoutEvent, _ := l.set("n1", leftOutOf([]types.NamespacedName{a})); len(withoutEvent) != 1 {
		t.Error("a new term says nothing again")
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

func leftOutOf(services []types.NamespacedName) (out []render.LeftOut) {
	for _, s := range services {
		out = append(out, render.LeftOut{Service: s})
	}
	return out
}

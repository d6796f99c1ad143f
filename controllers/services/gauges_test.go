package services

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
)

// A standby exports nothing about the cluster, whatever ends there after the
// lease is lost, and the next term begins with what is known.
func TestGaugesGoWithTheLease(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := metrics.New(registry)
	memory := NewMemory(m, func() {})
	service := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "shop", Name: name} }
	rejectService := func(name string) { memory.notRendered(service(name), "too large", "too large", 1, time.Unix(0, 0)) }
	expect := func(when string, unrendered float64, series int, leading float64) {
		t.Helper()
		for name, want := range map[string]float64{"unrendered_services": unrendered, "leading": leading} {
			if got := controllertest.Gauges(t, registry, name); len(got) != 1 || got[0] != want {
				t.Errorf("%s: %s is %v, want %v", when, name, got, want)
			}
		}
		if got := controllertest.Gauges(t, registry, "nodes"); len(got) != series {
			t.Errorf("%s: %d series of nodes, want %d", when, len(got), series)
		}
	}
	m.Lead(true)
	memory.NewTerm()
	rejectService("cart")
	m.ShowNodes(v1alpha1.NodeCounts{Total: 3, Stale: 3}, []string{"a", "b", "c"}, nil)
	expect("leading", 1, 7, 1)

	m.Lead(false)
	expect("standing by", 0, 0, 0)
	rejectService("pay")                                                               // a reconciliation that
	m.ShowNodes(v1alpha1.NodeCounts{Total: 3, Stale: 3}, []string{"a", "b", "c"}, nil) // has begun before
	expect("standing by, after work at hand has ended", 0, 0, 0)

	m.Lead(true)
	memory.NewTerm()
	expect("leading again", 2, 0, 1)
	memory.accepted(service("cart"))
	memory.accepted(service("pay"))
	expect("all accepted", 0, 0, 1)
}

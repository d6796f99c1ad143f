package controllers

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// A standby exports nothing about the cluster, whatever ends there after the
// lease is lost, and the next term begins with what is known.
func TestGaugesGoWithTheLease(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	memory := newServiceMemory(m, func() {})
	service := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "shop", Name: name} }
	refuse := func(name string) { memory.refuse(service(name), "too large", "too large", 1, time.Unix(0, 0)) }
	expect := func(when string, refused float64, series int, leading float64) {
		t.Helper()
		for name, want := range map[string]float64{"refused_services": refused, "leading": leading} {
			if got := gauges(t, registry, name); len(got) != 1 || got[0] != want {
				t.Errorf("%s: %s is %v, want %v", when, name, got, want)
			}
		}
		if got := gauges(t, registry, "nodes"); len(got) != series {
			t.Errorf("%s: %d series of nodes, want %d", when, len(got), series)
		}
	}
	m.lead(true)
	memory.newTerm()
	refuse("cart")
	m.showNodes(v1alpha1.NodeCounts{Total: 3, Stale: 3})
	expect("leading", 1, 7, 1)

	m.lead(false)
	expect("standing by", 0, 0, 0)
	refuse("pay")                                        // a reconciliation that
	m.showNodes(v1alpha1.NodeCounts{Total: 3, Stale: 3}) // has begun before
	expect("standing by, after work at hand has ended", 0, 0, 0)

	m.lead(true)
	memory.newTerm()
	expect("leading again", 2, 0, 1)
	memory.accepted(service("cart"))
	memory.accepted(service("pay"))
	expect("all accepted", 0, 0, 1)
}

// gauges returns the values of all series of a gauge.
func gauges(t *testing.T, g prometheus.Gatherer, name string) []float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []float64
	for _, family := range families {
		if family.GetName() != "nodeproxy_controller_"+name {
			continue
		}
		for _, series := range family.GetMetric() {
			out = append(out, series.GetGauge().GetValue())
		}
	}
	return out
}

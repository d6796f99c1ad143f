package controllers

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/formats"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/nodes"
	"github.com/nodeproxy-io/nodeproxy/controllers/overrides"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/services"
)

// A new term begins without what is known of Services that wait for the turn of their policies:
// they may be gone.
func TestNewTermForgetsOverrides(t *testing.T) {
	reader, list := controllertest.Stock(1, 3)
	clk := clocktesting.NewFakeClock(controllertest.Noon)
	o := overrides.New(reader, clk)
	for _, svc := range list {
		svc.Namespace = list[0].Namespace // all are selected by the policy
	}
	before := &v1alpha1.ServiceProxyRules{} // they were there before the policy
	ask := func(i int) time.Duration {
		t.Helper()
		s, err := o.Shape(t.Context(), list[i], before)
		if err != nil {
			t.Fatal(err)
		}
		return s.Again
	}
	ask(0)
	first := ask(1)
	if first == 0 {
		t.Fatal("the second Service does not wait")
	}
	m := metrics.New(prometheus.NewRegistry())
	s := &shared{
		Options: Options{Clock: clk}, queue: events.NewQueue(leader.Always{}, nil, clk, m),
		metrics: m, memory: services.NewMemory(m, func() {}), formats: formats.New(reader, nil), findings: reports.NewFindings(func() {}),
		wakers: newWakers(), overrides: o, leftOut: nodes.NewLeftOut(m),
	}
	s.lead(false)
	s.lead(true)
	if wait := ask(2); wait != first {
		t.Errorf("the third Service waits %s, want %s: the second is still waited for", wait, first)
	}
}

package controllers

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// A new term begins without what is known of Services that wait for the turn of their policies:
// they may be gone.
func TestNewTermForgetsOverrides(t *testing.T) {
	reader, list := stock(1, 3)
	clk := clocktesting.NewFakeClock(noon)
	o := newOverrides(reader, clk)
	for _, svc := range list {
		svc.Namespace = list[0].Namespace // all are selected by the policy
	}
	before := &v1alpha1.ServiceProxyRules{} // they were there before the policy
	ask := func(i int) time.Duration {
		t.Helper()
		s, err := o.shape(t.Context(), list[i], before)
		if err != nil {
			t.Fatal(err)
		}
		return s.again
	}
	ask(0)
	first := ask(1)
	if first == 0 {
		t.Fatal("the second Service does not wait")
	}
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	s := &shared{
		Options: Options{Clock: clk}, queue: newEventQueue(always{}, nil, clk, m),
		metrics: m, memory: newServiceMemory(m, func() {}), formats: newFormats(reader, nil), findings: newFindings(func() {}),
		wakers: newWakers(), overrides: o, leftOut: newLeftOut(m),
	}
	s.lead(false)
	s.lead(true)
	if wait := ask(2); wait != first {
		t.Errorf("the third Service waits %s, want %s: the second is still waited for", wait, first)
	}
}

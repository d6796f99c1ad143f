package agent

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/metrics"
)

func TestConditionGaugesThatStayAreNeverAway(t *testing.T) {
	m := metrics.New()
	list := func(i int) []metav1.Condition {
		return []metav1.Condition{
			{Type: "Programmed", Reason: "Programmed", Status: metav1.ConditionTrue},
			{Type: "Drift", Reason: fmt.Sprintf("Reason%d", i%2), Status: metav1.ConditionFalse},
		}
	}
	m.ShowConditions(list(0))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 5000 {
			m.ShowConditions(list(i))
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		if got := conditionSeries(t, m); got["Programmed Programmed"] != 1 {
			t.Fatalf("a scrape between two reports: %v", got)
		}
	}
	if got := conditionSeries(t, m); len(got) != 2 || got["Drift Reason1"] != 0 {
		t.Errorf("at the end: %v", got)
	}
	m.ShowConditions(nil)
	if got := conditionSeries(t, m); len(got) != 0 {
		t.Errorf("without conditions: %v", got)
	}
}

// conditionSeries are the gauges of conditions, by type and reason.
func conditionSeries(t *testing.T, m *metrics.Metrics) map[string]float64 {
	t.Helper()
	return values(t, &Agent{metrics: m}, "nodeproxy_agent_condition")
}

package agent

import (
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
)

// TestRefusedServicesAreNamedInTheLogOnceAMinute, whatever changes how often.
func TestRefusedServicesAreNamedInTheLogOnceAMinute(t *testing.T) {
	clk := clocktesting.NewFakeClock(agenttest.Epoch)
	lines := 0
	a := &Agent{options: Options{Clock: clk}, logged: map[subject]string{}, log: funcr.New(func(_, args string) { lines++ }, funcr.Options{})}
	for range 60 {
		a.logRejected([]string{"shop/a"})
		a.logRejected([]string{"shop/a"})
		a.logRejected(nil)
		clk.Step(time.Second)
	}
	if lines != 2 {
		t.Errorf("%d lines in a minute", lines)
	}
	a.logRejected([]string{"shop/a"})
	if lines != 3 {
		t.Errorf("%d lines after it", lines)
	}
}

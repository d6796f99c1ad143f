package ipvs

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/test/growth"
)

// TestGrowth: planning a Service takes as long as it is large.
func TestGrowth(t *testing.T) {
	c := testConfig(t, dataplane.IPv4, nil)
	for name, of := range dataplanetest.Large() {
		t.Run(name, func(t *testing.T) {
			growth.Linear(t, 100, of, func(s *dataplane.Service) {
				plan := c.planService(s, nil)
				plan.bindings()
			})
		})
	}
}

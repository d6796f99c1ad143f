package desired

import (
	"net/netip"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/test/growth"
)

// TestCountingGrowth: counting a Service's endpoints takes as long as it is large.
func TestCountingGrowth(t *testing.T) {
	for name, of := range dataplanetest.Large() {
		t.Run(name, func(t *testing.T) {
			growth.Linear(t, 100, of, func(s *dataplane.Service) {
				counts := endpointCount{uses: map[netip.AddrPort]uses{}}
				counts.add(s, 1)
				counts.add(s, -1)
			})
		})
	}
}

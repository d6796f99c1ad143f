package agent

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/metricsdoc"
)

func TestMetricsAreDocumented(t *testing.T) {
	r := &metricsdoc.Recorder{}
	registerMetrics(r)
	metricsdoc.Check(t, "../docs/metrics.md", "agent", r)
}

package agent

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/apiclient"
	"github.com/nodeproxy-io/nodeproxy/agent/metrics"
	"github.com/nodeproxy-io/nodeproxy/test/metricsdoc"
)

func TestMetricsAreDocumented(t *testing.T) {
	r := &metricsdoc.Recorder{}
	metrics.RegisterMetrics(r)
	apiclient.NewMetrics(r)
	metricsdoc.Check(t, "../docs/metrics.md", "agent", r)
}

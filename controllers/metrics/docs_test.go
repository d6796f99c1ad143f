package metrics

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/metricsdoc"
)

func TestMetricsAreDocumented(t *testing.T) {
	r := &metricsdoc.Recorder{}
	New(r)
	metricsdoc.Check(t, "../../docs/metrics.md", "controller", r)
}

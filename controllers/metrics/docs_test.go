package metrics

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/metricsdoc"
)

func TestMetricsAreDocumented(t *testing.T) {
	r := &metricsdoc.Recorder{}
	if _, err := New(r); err != nil {
		t.Fatal(err)
	}
	metricsdoc.Check(t, "../../docs/metrics.md", "controller", r)
}

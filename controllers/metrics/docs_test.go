package metrics

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/rollout"
	"github.com/nodeproxy-io/nodeproxy/test/metricsdoc"
)

func TestMetricsAreDocumented(t *testing.T) {
	r := &metricsdoc.Recorder{}
	New(r)
	metricsdoc.Check(t, "../../docs/metrics.md", "controller", r)
}

// TestNodeProblems: a problem has a series while it lasts, and only on the leader.
func TestNodeProblems(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	m := New(registry)
	shown := func() []string {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, f := range families {
			if f.GetName() != "nodeproxy_controller_node_problem" {
				continue
			}
			for _, series := range f.GetMetric() {
				var labels []string
				for _, l := range series.GetLabel() {
					labels = append(labels, l.GetValue())
				}
				out = append(out, strings.Join(labels, " "))
			}
		}
		return out
	}
	check := func(when string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, shown()); diff != "" { // labels in the order node, policy, state
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	m.ShowNodes(v1alpha1.NodeCounts{}, []string{"a"}, nil)
	check("on a standby")
	m.Lead(true)
	m.ShowNodes(v1alpha1.NodeCounts{}, []string{"a", "b"}, []string{"c"})
	m.ShowRollouts(map[string]*rollout.State{"edge": {Missed: []string{"a"}}, "": {Missed: []string{"d"}}})
	check("with every problem", "a  stale", "a edge missed", "b  stale", "c  lagging", "d  missed")
	m.ShowNodes(v1alpha1.NodeCounts{}, []string{"b"}, nil)
	check("after two have ended", "a edge missed", "b  stale", "d  missed")
	m.Lead(false)
	check("after the leadership")
}

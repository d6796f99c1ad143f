package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
)

// modeMetrics are those of the mode that runs.
type modeMetrics struct {
	modes    []dataplane.Declaration
	runs     *prometheus.GaugeVec
	fallback prometheus.Gauge
	// objects count what the kernel has, by metric. They have series in the mode that
	// declares them only.
	objects map[dataplane.ObjectMetric]*prometheus.GaugeVec
}

func newModeMetrics(r prometheus.Registerer) *modeMetrics {
	gauges := func(name, help, label string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "nodeproxy_agent_" + name, Help: help}, []string{label})
		r.MustRegister(g)
		return g
	}
	m := &modeMetrics{
		modes: modes.Declarations(),
		runs:  gauges("mode", "1 for the mode that runs (IPTables, IPVS), 0 for the others.", "mode"),
		fallback: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nodeproxy_agent_mode_fallback", Help: "1 while another mode runs than the one that is asked for, because the node cannot run that.",
		}),
		objects: map[dataplane.ObjectMetric]*prometheus.GaugeVec{},
	}
	r.MustRegister(m.fallback)
	for _, mode := range m.modes {
		for _, metric := range mode.Metrics {
			m.objects[metric] = gauges(metric.Name, metric.Help, "ip_family")
		}
	}
	return m
}

// show sets the gauges. One goroutine calls it.
func (m *modeMetrics) show(s desired.Snapshot) {
	m.fallback.Set(flag(s.Mode.Fallback() != ""))
	for _, mode := range m.modes {
		runs := s.Applied.Mode == mode.Mode
		m.runs.WithLabelValues(string(mode.Mode)).Set(flag(runs))
		for family, f := range s.Families {
			for _, metric := range mode.Metrics {
				if gauge := m.objects[metric]; f.Done && runs {
					gauge.WithLabelValues(string(family)).Set(float64(f.Counts[metric.Object]))
				} else {
					gauge.DeleteLabelValues(string(family))
				}
			}
		}
	}
}

package checkpoint

import "github.com/prometheus/client_golang/prometheus"

// Metrics are those of the last good set.
type Metrics struct {
	Written, Size, inUse prometheus.Gauge
	Failures             *prometheus.CounterVec
}

// NewMetrics registers the metrics of the checkpoint.
func NewMetrics(r prometheus.Registerer) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "nodeproxy_agent_checkpoint_" + name, Help: help})
	}
	m := &Metrics{
		Written: gauge("written_timestamp_seconds", "When the last good set on disk was written; 0: there is none that can be used."),
		Size:    gauge("size_bytes", "Size of the last good set on disk as last written by this agent."),
		inUse:   gauge("in_use", "1 while the node runs from the last good set on disk, because the API has not answered since the agent started."),
		Failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodeproxy_agent_checkpoint_failures_total",
			Help: "Attempts to read or write the last good set on disk that failed, by operation (read, write).",
		}, []string{"operation"}),
	}
	r.MustRegister(m.Written, m.Size, m.inUse, m.Failures)
	for _, operation := range []string{"read", "write"} {
		m.Failures.WithLabelValues(operation)
	}
	return m
}

// Used shows whether a checkpoint is in use.
func (m *Metrics) Used(active bool) {
	value := 0.0
	if active {
		value = 1
	}
	m.inUse.Set(value)
}

package checkpoint

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are those of the checkpoint.
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
		Written: gauge("written_timestamp_seconds", "When the checkpoint on disk was written; 0: none can be used."),
		Size:    gauge("size_bytes", "Size of the checkpoint on disk as last written by this agent."),
		inUse:   gauge("in_use", "1 while the node uses the checkpoint on disk, because the API has not answered since the agent started."),
		Failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodeproxy_agent_checkpoint_failures_total",
			Help: "Failed attempts to read or write the checkpoint on disk, by operation (read, write).",
		}, []string{"operation"}),
	}
	r.MustRegister(m.Written, m.Size, m.inUse, m.Failures)
	for _, operation := range []string{"read", "write"} {
		m.Failures.WithLabelValues(operation)
	}
	return m
}

// wrote shows when the checkpoint was written; zero: there is none.
func (m *Metrics) wrote(at time.Time) {
	seconds := 0.0
	if !at.IsZero() {
		seconds = float64(at.UnixMilli()) / 1000
	}
	m.Written.Set(seconds)
}

// Used shows whether a checkpoint is in use.
func (m *Metrics) Used(active bool) {
	value := 0.0
	if active {
		value = 1
	}
	m.inUse.Set(value)
}

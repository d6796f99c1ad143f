package conntrack

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of the connection tracking table.
type Metrics struct {
	entries, most, buckets        prometheus.Gauge
	insertFailed, drop, earlyDrop atomic.Int64
}

// NewMetrics registers the metrics of the connection tracking table.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "nodeproxy_agent_conntrack_" + name, Help: help})
		registry.MustRegister(g)
		return g
	}
	counter := func(name, help string, value *atomic.Int64) {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "nodeproxy_agent_conntrack_" + name, Help: help},
			func() float64 { return float64(value.Load()) }))
	}
	m.entries = gauge("entries", "Connections in the connection tracking table, at most some seconds ago; 0 also where there is none.")
	m.most = gauge("max_entries", "How many connections the connection tracking table takes; 0: any number, or there is none.")
	m.buckets = gauge("buckets", "Size of the hash table of the connection tracking table.")
	counter("insert_failed_total", "Connections that could not be entered into the connection tracking table, as the kernel counts them.", &m.insertFailed)
	counter("dropped_packets_total", "Packets dropped because the connection tracking table was full, as the kernel counts them.", &m.drop)
	counter("early_dropped_total", "Unanswered connections evicted from the full connection tracking table, as the kernel counts them.", &m.earlyDrop)
	return m
}

func (m *Metrics) show(f Figures) {
	m.entries.Set(float64(f.Entries))
	m.most.Set(float64(f.Max))
	m.buckets.Set(float64(f.Buckets))
	m.insertFailed.Store(f.InsertFailed)
	m.drop.Store(f.Drop)
	m.earlyDrop.Store(f.EarlyDrop)
}

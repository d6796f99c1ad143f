package controllers

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What is written, as metric labels.
const (
	kindService = "ServiceProxyRules"
	kindNode    = "NodeProxyRules"

	opCreate  = "create"
	opUpdate  = "update"
	opRelease = "release"
	opDelete  = "delete"
)

// metrics are the controller's own metrics.
type metrics struct {
	writes  *prometheus.CounterVec
	skipped *prometheus.CounterVec
	refused prometheus.Gauge
	render  *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodeproxy_controller_writes_total",
			Help: "Writes of rendered objects that the API server took, by kind and operation.",
		}, []string{"kind", "operation"}),
		skipped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodeproxy_controller_skipped_writes_total",
			Help: "Renderings that equalled what is stored, so that nothing was written, by kind.",
		}, []string{"kind"}),
		refused: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nodeproxy_controller_refused_services",
			Help: "Services whose rules cannot be rendered or stored; each is named in an event.",
		}),
		render: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nodeproxy_controller_render_seconds",
			Help:    "Time to render one object, by kind.",
			Buckets: prometheus.ExponentialBuckets(0.00001, 4, 10),
		}, []string{"kind"}),
	}
	for _, c := range []prometheus.Collector{m.writes, m.skipped, m.refused, m.render} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) wrote(kind, operation string) { m.writes.WithLabelValues(kind, operation).Inc() }
func (m *metrics) skip(kind string)             { m.skipped.WithLabelValues(kind).Inc() }
func (m *metrics) rendered(kind string, took time.Duration) {
	m.render.WithLabelValues(kind).Observe(took.Seconds())
}

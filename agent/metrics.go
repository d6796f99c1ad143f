package agent

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// metrics are the agent's metrics, in a registry of their own.
type metrics struct {
	registry     *prometheus.Registry
	syncDuration *prometheus.HistogramVec
	syncFailures *prometheus.CounterVec
	lastSync     *prometheus.GaugeVec
	verified     *prometheus.CounterVec
	differences  *prometheus.CounterVec
	services     prometheus.Gauge
	endpoints    prometheus.Gauge
	held         prometheus.Gauge
	refused      prometheus.Gauge
	pending      prometheus.Gauge
	conflicting  prometheus.Gauge
	objectGone   prometheus.Gauge
	watchFailing *prometheus.GaugeVec
}

func newMetrics() *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "nodeproxy_agent_" + name, Help: help})
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nodeproxy_agent_" + name, Help: help}, labels)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		syncDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nodeproxy_agent_sync_duration_seconds",
			Help:    "How long writes to the kernel took, in seconds, by kind (Full or Partial).",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18),
		}, []string{"kind"}),
		syncFailures: counter("sync_failures_total", "Writes to the kernel that failed, by IP family.", "ip_family"),
		lastSync: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nodeproxy_agent_last_sync_timestamp_seconds",
			Help: "When the last successful write to the kernel ended, by IP family.",
		}, []string{"ip_family"}),
		verified:    counter("verifications_total", "Comparisons of the whole kernel to what is wanted, by IP family and result (same, different, failed).", "ip_family", "result"),
		differences: counter("differences_total", "Differences that verifications found and repaired, by IP family.", "ip_family"),
		services:    gauge("services", "Services that are programmed."),
		endpoints:   gauge("endpoints", "Distinct endpoints of those Services."),
		held:        gauge("held_services", "Services whose object has vanished without being released; their rules stay."),
		refused:     gauge("refused_services", "Services that are not programmed as wanted."),
		pending:     gauge("pending_change_seconds", "Age of the oldest change that the kernel does not hold, in seconds; 0: none."),
		conflicting: gauge("conflicting_proxy", "1 while another proxy is active and nothing is written."),
		objectGone:  gauge("node_proxy_rules_missing", "1 while the node's NodeProxyRules does not exist; the last known one stays in force."),
		watchFailing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nodeproxy_agent_watch_failing",
			Help: "1 while a resource cannot be read from the API.",
		}, []string{"resource"}),
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.syncDuration, m.syncFailures, m.lastSync, m.verified, m.differences, m.services, m.endpoints,
		m.held, m.refused, m.pending, m.conflicting, m.objectGone, m.watchFailing,
	)
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// synced counts the outcome of a sync.
func (m *metrics) synced(kind v1alpha1.SyncKind, took time.Duration, now time.Time, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result]) {
	m.syncDuration.WithLabelValues(string(kind)).Observe(took.Seconds())
	for family, outcome := range outcomes {
		if outcome.Err != nil {
			m.syncFailures.WithLabelValues(string(family)).Inc()
		} else {
			m.lastSync.WithLabelValues(string(family)).Set(float64(now.UnixMilli()) / 1000)
		}
	}
}

// compared counts the outcome of a verification.
func (m *metrics) compared(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Difference]) {
	for family, outcome := range outcomes {
		result := "same"
		switch {
		case outcome.Err != nil:
			result = "failed"
		case outcome.Value.Count > 0:
			result = "different"
			m.differences.WithLabelValues(string(family)).Add(float64(outcome.Value.Count))
		}
		m.verified.WithLabelValues(string(family), result).Inc()
	}
}

// show sets the gauges.
func (m *metrics) show(s snapshot) {
	m.services.Set(float64(s.services))
	m.endpoints.Set(float64(s.endpoints))
	m.held.Set(float64(len(s.held)))
	m.refused.Set(float64(len(s.refused)))
	m.objectGone.Set(flag(s.own != nil && !s.exists))
	age := 0.0
	if !s.oldestPending.IsZero() {
		age = s.now.Sub(s.oldestPending).Seconds()
	}
	m.pending.Set(age)
}

func (m *metrics) conflict(active bool) { m.conflicting.Set(flag(active)) }

func (m *metrics) watchTrouble(resource string, failing bool) {
	m.watchFailing.WithLabelValues(resource).Set(flag(failing))
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

package apiclient

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// Metrics are the metrics of the agent's use of the API. Those of requests have the names that all
// components of Kubernetes use.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	renewals *prometheus.CounterVec // of the Lease, by result
	failing  *prometheus.GaugeVec   // watches, by resource
}

// NewMetrics registers them with r, and those of requests with client-go, which serves the first
// registration in a process.
func NewMetrics(r prometheus.Registerer) *Metrics {
	factory := promauto.With(r)
	m := &Metrics{
		requests: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_requests_total",
			Help: "Requests to the API server, by status (or error, without an answer), method and host.",
		}, []string{"code", "method", "host"}),
		duration: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rest_client_request_duration_seconds",
			Help:    "How long requests to the API server took until the answer began.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60},
		}, []string{"verb", "host"}),
		renewals: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "nodeproxy_agent_lease_renewals_total",
			Help: "Renewals of the agent's Lease, its heartbeat, by result (renewed, failed).",
		}, []string{"result"}),
		failing: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nodeproxy_agent_watch_failing",
			Help: "1 while a resource cannot be read from the API.",
		}, []string{"resource"}),
	}
	for _, result := range []string{leaseWritten, leaseFailed} {
		m.renewals.WithLabelValues(result)
	}
	for _, resource := range []string{resourceServices, resourceProxies, resourceNodes} {
		m.failing.WithLabelValues(resource).Set(0)
	}
	clientmetrics.Register(clientmetrics.RegisterOpts{RequestResult: m, RequestLatency: requestLatency{m}})
	return m
}

// Increment implements metrics.ResultMetric.
func (m *Metrics) Increment(_ context.Context, code, method, host string) {
	m.requests.WithLabelValues(code, method, host).Inc()
}

type requestLatency struct{ *Metrics }

// Observe implements metrics.LatencyMetric.
func (m requestLatency) Observe(_ context.Context, verb string, u url.URL, latency time.Duration) {
	m.duration.WithLabelValues(verb, u.Host).Observe(latency.Seconds())
}

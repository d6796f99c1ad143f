package agent

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// clientMetrics are the metrics of requests to the API server, with the names
// that all components of Kubernetes use.
type clientMetrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// registerClientMetrics makes them known to r, and r's to client-go, which
// serves the first one that asks in a process.
func registerClientMetrics(r prometheus.Registerer) {
	m := &clientMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_requests_total",
			Help: "Requests to the API server, by status (or error, without an answer), method and host.",
		}, []string{"code", "method", "host"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rest_client_request_duration_seconds",
			Help:    "How long requests to the API server took until the answer began.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60},
		}, []string{"verb", "host"}),
	}
	r.MustRegister(m.requests, m.duration)
	clientmetrics.Register(clientmetrics.RegisterOpts{RequestResult: m, RequestLatency: requestLatency{m}})
}

// Increment implements metrics.ResultMetric.
func (m *clientMetrics) Increment(_ context.Context, code, method, host string) {
	m.requests.WithLabelValues(code, method, host).Inc()
}

type requestLatency struct{ *clientMetrics }

// Observe implements metrics.LatencyMetric.
func (m requestLatency) Observe(_ context.Context, verb string, u url.URL, latency time.Duration) {
	m.duration.WithLabelValues(verb, u.Host).Observe(latency.Seconds())
}

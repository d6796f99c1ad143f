package metrics

import (
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
)

// Metrics are the agent's metrics.
type Metrics struct {
	Registry     *prometheus.Registry
	Checkpoint   *checkpoint.Metrics
	Proxy        *proxyMetrics
	verified     *prometheus.CounterVec
	differences  *prometheus.CounterVec
	repairs      *prometheus.CounterVec
	flowsRemoved *prometheus.CounterVec
	flowsRead    *prometheus.CounterVec
	flowPasses   *prometheus.CounterVec
	services     prometheus.Gauge
	endpoints    prometheus.Gauge
	retained     prometheus.Gauge
	rejected     prometheus.Gauge
	pending      prometheus.Gauge
	objectGone   prometheus.Gauge
	conditions   *prometheus.GaugeVec
	shown        map[[2]string]bool // type and reason of each series of conditions
	build        *prometheus.GaugeVec
	Checks       prometheus.Counter
	Tracking     *conntrack.Metrics
	modes        *prometheus.GaugeVec
	fallback     prometheus.Gauge
	// objects count what the kernel has, by metric. They only have series in the mode that
	// declares them.
	objects map[dataplane.ObjectMetric]*prometheus.GaugeVec
}

// New returns the metrics of an agent, in a registry of their own.
func New() *Metrics {
	registry := prometheus.NewRegistry()
	m := RegisterMetrics(registry)
	m.Registry = registry
	return m
}

// factory creates registered metrics whose names begin with a prefix.
type factory struct {
	promauto.Factory
	prefix string
}

func (f factory) gauge(name, help string) prometheus.Gauge {
	return f.NewGauge(prometheus.GaugeOpts{Name: f.prefix + name, Help: help}) //nolint:promlinter // a test checks the whole names
}

func (f factory) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return f.NewGaugeVec(prometheus.GaugeOpts{Name: f.prefix + name, Help: help}, labels) //nolint:promlinter // a test checks the whole names
}

func (f factory) counter(name, help string) prometheus.Counter {
	return f.NewCounter(prometheus.CounterOpts{Name: f.prefix + name, Help: help}) //nolint:promlinter // a test checks the whole names
}

func (f factory) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return f.NewCounterVec(prometheus.CounterOpts{Name: f.prefix + name, Help: help}, labels) //nolint:promlinter // a test checks the whole names
}

// RegisterMetrics registers the metrics with r.
func RegisterMetrics(r prometheus.Registerer) *Metrics {
	f := factory{promauto.With(r), "nodeproxy_agent_"}
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m := &Metrics{
		Proxy:        newProxyMetrics(r),
		Checkpoint:   checkpoint.NewMetrics(r),
		Tracking:     conntrack.NewMetrics(r),
		verified:     f.counters("verifications_total", "Verifications that compare the kernel with the desired state, by result (same, different, failed). Rules are only read if another program may have changed them.", "ip_family", "result"),
		differences:  f.counters("differences_total", "Differences that verifications found.", "ip_family"),
		repairs:      f.counters("repairs_total", "Repairs of rules that other programs had changed.", "ip_family"),
		flowsRemoved: f.counters("stale_flows_removed_total", "Flows removed from the connection tracking table, by reason (endpoint_gone, no_endpoint, not_translated, other_mode, address_gone).", "ip_family", "reason"),
		flowsRead:    f.counters("flows_read_total", "Flows read from the connection tracking table and compared to the rules.", "ip_family"),
		flowPasses:   f.counters("flow_comparisons_total", "Comparisons of flows to the rules, by result (complete, failed).", "ip_family", "result"),
		services:     f.gauge("services", "Services that are programmed."),
		endpoints:    f.gauge("endpoints", "Distinct endpoints of the Services that are programmed."),
		retained:     f.gauge("retained_services", "Services whose object has vanished without being released; their rules are retained."),
		rejected:     f.gauge("rejected_services", "Services that are not programmed as desired, because the kernel rejects their rules or the agent does not know the format of their object."),
		pending:      f.gauge("pending_change_seconds", "Age of the oldest change that the kernel does not have; 0: none."),
		objectGone:   f.gauge("node_proxy_rules_missing", "1 while the node's NodeProxyRules does not exist; the last known one stays applied."),
		conditions:   f.gauges("condition", "Conditions of the node's NodeProxyRules as the agent would write them now: 1 if the status is True, 0 if it is False. A condition that is absent has no series.", "type", "reason"),
		Checks:       f.counter("other_proxy_checks_total", "Checks for other proxies on the node: every one to a few seconds, and before every write."),
		modes:        f.gauges("mode", "1 for the mode that runs (IPTables, IPVS, NFTables), 0 for the others.", "mode"),
		fallback:     f.gauge("mode_fallback", "1 while a fallback mode runs because the node cannot run the desired one."),
		build:        factory{f.Factory, "nodeproxy_"}.gauges("build_info", "1, with the release and the version of Go that it was built with.", "version", "go_version"),
		objects:      map[dataplane.ObjectMetric]*prometheus.GaugeVec{},
	}
	for _, mode := range modes.Declarations() {
		for _, metric := range mode.Metrics {
			m.objects[metric] = f.gauges(metric.Name, metric.Help, "ip_family")
		}
	}
	return m
}

// Begin initializes the series that are known from the start.
func (m *Metrics) Begin(version string, families []dataplane.Family) {
	m.build.WithLabelValues(version, runtime.Version()).Set(1)
	m.Proxy.begin(families)
	for _, family := range families {
		m.repairs.WithLabelValues(string(family))
		m.differences.WithLabelValues(string(family))
		for _, result := range []string{"same", "different", "failed"} {
			m.verified.WithLabelValues(string(family), result)
		}
		for _, reason := range conntrack.Reasons() {
			m.flowsRemoved.WithLabelValues(string(family), string(reason))
		}
	}
}

// maxScrapes bounds the concurrent answers of /metrics on a port.
const maxScrapes = 4

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.Registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
}

// Compared counts the outcome of a verification.
func (m *Metrics) Compared(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Difference]) {
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

// Repaired counts repairs of what other programs have changed.
func (m *Metrics) Repaired(families []dataplane.Family) {
	for _, family := range families {
		m.repairs.WithLabelValues(string(family)).Inc()
	}
}

// Cleaned counts the outcome of a comparison of flows to the rules.
func (m *Metrics) Cleaned(family dataplane.Family, pass conntrack.Pass) {
	result := "complete"
	if pass.Err != nil {
		result = "failed"
	}
	m.flowPasses.WithLabelValues(string(family), result).Inc()
	m.flowsRead.WithLabelValues(string(family)).Add(float64(pass.Read))
	m.Proxy.flowDuration.WithLabelValues(string(family)).Observe(pass.Took.Seconds())
	for reason, count := range pass.Removed {
		m.flowsRemoved.WithLabelValues(string(family), string(reason)).Add(float64(count))
		m.Proxy.flowsDeleted.WithLabelValues(string(family)).Add(float64(count))
	}
}

// Show sets the gauges. Only one goroutine calls it.
func (m *Metrics) Show(s desired.Snapshot) {
	m.services.Set(float64(s.Services))
	m.endpoints.Set(float64(s.Endpoints))
	m.retained.Set(float64(len(s.Retained)))
	m.rejected.Set(float64(len(s.Rejected)))
	m.objectGone.Set(flag(s.Own != nil && !s.Exists))
	m.fallback.Set(flag(s.Mode.Fallback() != ""))
	age := 0.0
	if !s.OldestPending.IsZero() {
		age = s.Now.Sub(s.OldestPending).Seconds()
	}
	m.pending.Set(age)
	m.Proxy.InMode(s.Mode.Mode)
	m.Proxy.show(s.Changes)
	for _, mode := range modes.Declarations() {
		runs := s.Applied.Mode == mode.Mode
		m.modes.WithLabelValues(string(mode.Mode)).Set(flag(runs))
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

// ShowConditions sets the gauges of conditions. Only one goroutine calls it. A series that stays is
// never removed meanwhile: that would restart the wait of an alert.
func (m *Metrics) ShowConditions(list []metav1.Condition) {
	now := make(map[[2]string]bool, len(list))
	for _, c := range list {
		now[[2]string{c.Type, c.Reason}] = true
		m.conditions.WithLabelValues(c.Type, c.Reason).Set(flag(c.Status == metav1.ConditionTrue))
	}
	for former := range m.shown { // gone, or with another reason
		if !now[former] {
			m.conditions.DeleteLabelValues(former[0], former[1])
		}
	}
	m.shown = now
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

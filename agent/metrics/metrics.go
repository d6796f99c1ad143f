package metrics

import (
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
)

// Metrics are the agent's metrics, in a registry of their own. Those that mean
// what kube-proxy's mean have its names and are in proxy. docs/metrics.md lists
// all of them; a test compares.
type Metrics struct {
	Registry     *prometheus.Registry
	Keep         *checkpoint.Metrics // of the last good set on disk
	Proxy        *proxyMetrics
	verified     *prometheus.CounterVec
	differences  *prometheus.CounterVec
	repairs      *prometheus.CounterVec
	flowsRemoved *prometheus.CounterVec
	flowsRead    *prometheus.CounterVec
	flowPasses   *prometheus.CounterVec
	services     prometheus.Gauge
	endpoints    prometheus.Gauge
	held         prometheus.Gauge
	refused      prometheus.Gauge
	pending      prometheus.Gauge
	objectGone   prometheus.Gauge
	conditions   *prometheus.GaugeVec
	shown        map[[2]string]bool // type and reason of each series of conditions
	build        *prometheus.GaugeVec
	Checks       prometheus.Counter
	Tracking     *conntrack.Metrics
	modes        *modeMetrics
}

// New returns the metrics of an agent, in a registry of their own.
func New() *Metrics {
	registry := prometheus.NewRegistry()
	m := RegisterMetrics(registry)
	m.Registry = registry
	return m
}

// RegisterMetrics makes the metrics known to r.
func RegisterMetrics(r prometheus.Registerer) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "nodeproxy_agent_" + name, Help: help})
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "nodeproxy_agent_" + name, Help: help}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nodeproxy_agent_" + name, Help: help}, labels)
	}
	m := &Metrics{
		Proxy:        newProxyMetrics(),
		Keep:         checkpoint.NewMetrics(r),
		verified:     counter("verifications_total", "Verifications that the kernel holds what is wanted, by result (same, different, failed). The rules are read only where somebody else may have changed them.", "ip_family", "result"),
		differences:  counter("differences_total", "Differences that verifications found.", "ip_family"),
		repairs:      counter("repairs_total", "Repairs of rules that others had changed.", "ip_family"),
		flowsRemoved: counter("stale_flows_removed_total", "Flows removed from the connection tracking table, by reason (endpoint_gone, no_endpoint, not_translated, other_mode, address_gone).", "ip_family", "reason"),
		flowsRead:    counter("flows_read_total", "Flows read from the connection tracking table and compared to the rules.", "ip_family"),
		flowPasses:   counter("flow_comparisons_total", "Comparisons of flows to the rules, by result (complete, failed).", "ip_family", "result"),
		services:     gauge("services", "Services that are programmed."),
		endpoints:    gauge("endpoints", "Distinct endpoints of the Services that are programmed."),
		held:         gauge("retained_services", "Services whose object has vanished without being released; their rules stay."),
		refused:      gauge("rejected_services", "Services that are not programmed as wanted, because the kernel refuses their rules or the agent does not know the format of their object."),
		pending:      gauge("pending_change_seconds", "Age of the oldest change that the kernel does not hold; 0: none."),
		objectGone:   gauge("node_proxy_rules_missing", "1 while the node's NodeProxyRules does not exist; the last known one stays in force."),
		conditions:   gauges("condition", "Conditions of the node's NodeProxyRules as the agent would write them now: 1 where the status is True, 0 where it is False. A condition that is absent has no series.", "type", "reason"),
		build: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nodeproxy_build_info", Help: "1, with the release and the version of Go that it was built with.",
		}, []string{"version", "go_version"}),
		Checks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodeproxy_agent_other_proxy_checks_total",
			Help: "Checks for other proxies on the node: every one to a few seconds, and before every write.",
		}),
	}
	r.MustRegister(m.Proxy.collectors()...)
	r.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.verified, m.differences, m.repairs, m.flowsRemoved, m.flowsRead, m.flowPasses, m.services, m.endpoints,
		m.held, m.refused, m.pending, m.objectGone, m.conditions, m.build, m.Checks,
	)
	m.Tracking = conntrack.NewMetrics(r)
	m.modes = newModeMetrics(r)
	return m
}

// Begin shows what is known from the start.
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

// maxScrapes is how many answers of /metrics a port makes at a time.
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

// Repaired counts repairs of what others have changed.
func (m *Metrics) Repaired(families []dataplane.Family) {
	for _, family := range families {
		m.repairs.WithLabelValues(string(family)).Inc()
	}
}

// Cleaned counts what a comparison of flows to the rules did.
func (m *Metrics) Cleaned(family dataplane.Family, pass conntrack.Pass) {
	result := "complete"
	if pass.Err != nil {
		result = "failed"
	}
	m.flowPasses.WithLabelValues(string(family), result).Inc()
	m.flowsRead.WithLabelValues(string(family)).Add(float64(pass.Read))
	m.Proxy.cleaned(family, pass)
	for reason, count := range pass.Removed {
		m.flowsRemoved.WithLabelValues(string(family), string(reason)).Add(float64(count))
	}
}

// Show sets the gauges.
func (m *Metrics) Show(s desired.Snapshot) {
	m.services.Set(float64(s.Services))
	m.endpoints.Set(float64(s.Endpoints))
	m.held.Set(float64(len(s.Retained)))
	m.refused.Set(float64(len(s.Rejected)))
	m.objectGone.Set(flag(s.Own != nil && !s.Exists))
	age := 0.0
	if !s.OldestPending.IsZero() {
		age = s.Now.Sub(s.OldestPending).Seconds()
	}
	m.pending.Set(age)
	m.modes.show(s)
	m.Proxy.show(s.Changes)
}

// ShowConditions sets the gauges of conditions. Only one goroutine calls it. A
// series that stays is never away: an alert would begin to wait anew.
func (m *Metrics) ShowConditions(list []metav1.Condition) {
	now := make(map[[2]string]bool, len(list))
	for _, c := range list {
		now[[2]string{c.Type, c.Reason}] = true
		m.conditions.WithLabelValues(c.Type, c.Reason).Set(flag(c.Status == metav1.ConditionTrue))
	}
	for former := range m.shown { // gone, or it has another reason
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

package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// proxyMetrics are those with kube-proxy's names, because they mean what
// kube-proxy's mean: dashboards and alerts go on working. Names, types, labels
// and buckets are its own.
type proxyMetrics struct {
	syncs, fullSyncs, partialSyncs, programming   *prometheus.HistogramVec
	lastSync, lastQueued, noLocal, rules, written *prometheus.GaugeVec
	failures, partialFailures                     *prometheus.CounterVec
	endpointsPending, servicesPending             prometheus.Gauge
	endpointChanges, serviceChanges               prometheus.Counter
	flowDuration                                  *prometheus.HistogramVec
	flowsDeleted, healthz, livez                  *prometheus.CounterVec

	shown desired.ChangeTotals // what the counters of changes stand at
}

func newProxyMetrics() *proxyMetrics {
	durations := prometheus.ExponentialBuckets(0.001, 2, 15)
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kubeproxy_" + name, Help: help, Buckets: buckets}, []string{"ip_family"})
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubeproxy_" + name, Help: help}, labels)
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubeproxy_" + name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubeproxy_" + name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "kubeproxy_" + name, Help: help})
	}
	return &proxyMetrics{
		syncs:        histogram("sync_proxy_rules_duration_seconds", "How long syncs of the kernel took, failed ones too.", durations),
		fullSyncs:    histogram("sync_full_proxy_rules_duration_seconds", "How long syncs took that read and compared all rules.", durations),
		partialSyncs: histogram("sync_partial_proxy_rules_duration_seconds", "How long syncs took that wrote changed Services alone.", durations),
		programming:  histogram("network_programming_duration_seconds", "From a change of endpoints, by the annotation last-change-trigger-time, until the kernel held it. Changes from before the agent's start do not count.", programmingBuckets()),
		lastSync:     gauges("sync_proxy_rules_last_timestamp_seconds", "When the last successful sync ended.", "ip_family"),
		lastQueued:   gauges("sync_proxy_rules_last_queued_timestamp_seconds", "When a sync was last asked for.", "ip_family"),

		endpointsPending: gauge("sync_proxy_rules_endpoint_changes_pending", "Services of whose endpoints the kernel does not hold the newest."),
		endpointChanges:  counter("sync_proxy_rules_endpoint_changes_total", "Changes of endpoints that have come, or of which of them are on this node."),
		servicesPending:  gauge("sync_proxy_rules_service_changes_pending", "Services of which the kernel does not hold the newest, endpoints apart."),
		serviceChanges:   counter("sync_proxy_rules_service_changes_total", "Changes of Services that have come, endpoints apart."),
		noLocal:          gauges("sync_proxy_rules_no_local_endpoints_total", "Service ports with traffic policy Local (internal or external) that have endpoints, but none on this node.", "traffic_policy", "ip_family"),

		rules:           gauges("sync_proxy_rules_iptables_total", "Rules of nodeproxy in the kernel.", "table", "ip_family"),
		written:         gauges("sync_proxy_rules_iptables_last", "Rules that the last successful sync wrote.", "table", "ip_family"),
		failures:        counters("sync_proxy_rules_iptables_restore_failures_total", "Syncs that failed, or in which the kernel refused rules of some Services.", "ip_family"),
		partialFailures: counters("sync_proxy_rules_iptables_partial_restore_failures_total", "Failed or refused syncs that were to write changed Services alone.", "ip_family"),

		flowDuration: histogram("conntrack_reconciler_sync_duration_seconds", "How long comparisons of flows to the rules took.", durations),
		flowsDeleted: counters("conntrack_reconciler_deleted_entries_total", "Flows removed from the connection tracking table because they contradicted the rules.", "ip_family"),
		healthz:      counters("proxy_healthz_total", "Answers of /healthz of the proxy's health port, by status.", "code"),
		livez:        counters("proxy_livez_total", "Answers of /livez of the proxy's health port, by status.", "code"),
	}
}

// programmingBuckets are kube-proxy's, the first one too, although nothing but
// clocks that differ comes there: sums over nodes of both fit.
func programmingBuckets() []float64 {
	buckets := []float64{0, 0.25, 0.5}
	buckets = append(buckets, prometheus.LinearBuckets(1, 1, 59)...)
	buckets = append(buckets, prometheus.LinearBuckets(60, 5, 12)...)
	return append(buckets, prometheus.LinearBuckets(120, 30, 7)...)
}

func (m *proxyMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.syncs, m.fullSyncs, m.partialSyncs, m.programming, m.lastSync, m.lastQueued,
		m.endpointsPending, m.endpointChanges, m.servicesPending, m.serviceChanges, m.noLocal,
		m.rules, m.written, m.failures, m.partialFailures,
		m.flowDuration, m.flowsDeleted, m.healthz, m.livez,
	}
}

// begin shows counters from 0 on: one that appears with 1 has not increased.
func (m *proxyMetrics) begin(families []dataplane.Family) {
	for _, family := range families {
		for _, c := range []*prometheus.CounterVec{m.failures, m.partialFailures, m.flowsDeleted} {
			c.WithLabelValues(string(family))
		}
	}
	for _, code := range []string{"200", "503"} {
		m.healthz.WithLabelValues(code)
		m.livez.WithLabelValues(code)
	}
}

// Queued notes that a sync was asked for.
func (m *proxyMetrics) Queued(families []dataplane.Family, now time.Time) {
	for _, family := range families {
		m.lastQueued.WithLabelValues(string(family)).Set(UnixSeconds(now))
	}
}

// Synced counts the outcome of a sync that ended at now.
func (m *proxyMetrics) Synced(rulesets map[dataplane.Family]*dataplane.Ruleset, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result], now time.Time) {
	for family, outcome := range outcomes {
		label := string(family)
		wantedFull := rulesets[family].Full
		m.syncs.WithLabelValues(label).Observe(outcome.Took.Seconds())
		if outcome.Value.Kind == v1alpha1.SyncFull || outcome.Err != nil && wantedFull {
			m.fullSyncs.WithLabelValues(label).Observe(outcome.Took.Seconds())
		} else {
			m.partialSyncs.WithLabelValues(label).Observe(outcome.Took.Seconds())
		}
		if outcome.Err != nil || outcome.Value.Failed {
			m.failures.WithLabelValues(label).Inc()
			if !wantedFull {
				m.partialFailures.WithLabelValues(label).Inc()
			}
		}
		if outcome.Err != nil {
			continue
		}
		m.lastSync.WithLabelValues(label).Set(UnixSeconds(now))
		for table, count := range outcome.Value.Tables {
			m.rules.WithLabelValues(table, label).Set(float64(count.Rules))
			m.written.WithLabelValues(table, label).Set(float64(count.Written))
		}
	}
}

// Programmed takes what the store has found out by a sync.
func (m *proxyMetrics) Programmed(families map[dataplane.Family]desired.ProgrammedChanges) {
	for family, p := range families {
		for _, took := range p.Latencies {
			m.programming.WithLabelValues(string(family)).Observe(took.Seconds())
		}
		m.noLocal.WithLabelValues("internal", string(family)).Set(float64(p.NoLocal.Internal))
		m.noLocal.WithLabelValues("external", string(family)).Set(float64(p.NoLocal.External))
	}
}

// show brings the figures of changes up to date. One goroutine calls it.
func (m *proxyMetrics) show(c desired.ChangeTotals) {
	m.endpointsPending.Set(float64(c.EndpointsPending))
	m.servicesPending.Set(float64(c.ServicesPending))
	m.endpointChanges.Add(float64(c.Endpoints - m.shown.Endpoints))
	m.serviceChanges.Add(float64(c.Services - m.shown.Services))
	m.shown = c
}

// cleaned counts what a comparison of flows to the rules did.
func (m *proxyMetrics) cleaned(family dataplane.Family, pass conntrack.Pass) {
	m.flowDuration.WithLabelValues(string(family)).Observe(pass.Took.Seconds())
	for _, count := range pass.Removed {
		m.flowsDeleted.WithLabelValues(string(family)).Add(float64(count))
	}
}

// Answered counts an answer of the proxy's health port.
func (m *proxyMetrics) Answered(path string, code int) {
	if path == "/healthz" {
		m.healthz.WithLabelValues(strconv.Itoa(code)).Inc()
	} else {
		m.livez.WithLabelValues(strconv.Itoa(code)).Inc()
	}
}

// UnixSeconds returns a time as metrics give it: in seconds since 1970.
func UnixSeconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

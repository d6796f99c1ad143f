package metrics

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// proxyMetrics have kube-proxy's names, types, labels and buckets, because they mean the same:
// dashboards and alerts continue to work.
type proxyMetrics struct {
	syncs, fullSyncs, partialSyncs, programming   *prometheus.HistogramVec
	lastSync, lastQueued, noLocal, rules, written *prometheus.GaugeVec
	failures, partialFailures, nftablesFailures   *prometheus.CounterVec
	endpointsPending, servicesPending             prometheus.Gauge
	endpointChanges, serviceChanges               prometheus.Counter
	flowDuration                                  *prometheus.HistogramVec
	families                                      []dataplane.Family
	flowsDeleted, healthz, livez                  *prometheus.CounterVec

	shown desired.ChangeTotals // the values of the counters of changes
}

func newProxyMetrics(r prometheus.Registerer) *proxyMetrics {
	f := factory{promauto.With(r), "kubeproxy_"}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return f.NewHistogramVec(prometheus.HistogramOpts{Name: f.prefix + name, Help: help, Buckets: buckets}, []string{"ip_family"}) //nolint:promlinter // a test checks the whole names
	}
	durations := prometheus.ExponentialBuckets(0.001, 2, 15)
	return &proxyMetrics{
		syncs:        histogram("sync_proxy_rules_duration_seconds", "How long syncs of the kernel took, failed ones too.", durations),
		fullSyncs:    histogram("sync_full_proxy_rules_duration_seconds", "How long syncs took that read and compared all rules.", durations),
		partialSyncs: histogram("sync_partial_proxy_rules_duration_seconds", "How long syncs took that wrote changed Services alone.", durations),
		programming:  histogram("network_programming_duration_seconds", "From a change of endpoints, by the annotation last-change-trigger-time, until the kernel had it. Changes from before the agent's start do not count.", programmingBuckets()),
		lastSync:     f.gauges("sync_proxy_rules_last_timestamp_seconds", "When the last successful sync ended.", "ip_family"),
		lastQueued:   f.gauges("sync_proxy_rules_last_queued_timestamp_seconds", "When a sync was last requested.", "ip_family"),

		endpointsPending: f.gauge("sync_proxy_rules_endpoint_changes_pending", "Services whose newest endpoints the kernel does not have."),
		endpointChanges:  f.counter("sync_proxy_rules_endpoint_changes_total", "Received changes of endpoints, or of which of them are on this node."),
		servicesPending:  f.gauge("sync_proxy_rules_service_changes_pending", "Services whose newest state, apart from endpoints, the kernel does not have."),
		serviceChanges:   f.counter("sync_proxy_rules_service_changes_total", "Received changes of Services, apart from endpoints."),
		noLocal:          f.gauges("sync_proxy_rules_no_local_endpoints_total", "Service ports with traffic policy Local (internal or external) that have endpoints, but none on this node.", "traffic_policy", "ip_family"),

		rules:           f.gauges("sync_proxy_rules_iptables_total", "Rules of nodeproxy in the kernel.", "table", "ip_family"),
		written:         f.gauges("sync_proxy_rules_iptables_last", "Rules that the last successful sync wrote.", "table", "ip_family"),
		failures:        f.counters("sync_proxy_rules_iptables_restore_failures_total", "Syncs that failed, or in which the kernel rejected rules of some Services.", "ip_family"),
		partialFailures: f.counters("sync_proxy_rules_iptables_partial_restore_failures_total", "Failed or rejected syncs of changed Services alone.", "ip_family"),
		// Its companion for cleanups has no meaning here: the batch that changes a Service also deletes what
		// is no longer needed.
		nftablesFailures: f.counters("sync_proxy_rules_nftables_sync_failures_total", "Syncs that failed, or in which the kernel rejected some Services. Only in mode NFTables.", "ip_family"),

		flowDuration: histogram("conntrack_reconciler_sync_duration_seconds", "How long comparisons of flows to the rules took.", durations),
		flowsDeleted: f.counters("conntrack_reconciler_deleted_entries_total", "Flows removed from the connection tracking table because they contradicted the rules.", "ip_family"),
		healthz:      f.counters("proxy_healthz_total", "Answers of /healthz of the proxy's health port, by status.", "code"),
		livez:        f.counters("proxy_livez_total", "Answers of /livez of the proxy's health port, by status.", "code"),
	}
}

// programmingBuckets are kube-proxy's, even the first one, which only counts changes from clocks that
// are ahead: sums over nodes with either proxy are possible.
func programmingBuckets() []float64 {
	return slices.Concat([]float64{0, 0.25, 0.5}, prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7))
}

// begin initializes counters with 0: one that appears with 1 has not increased.
func (m *proxyMetrics) begin(families []dataplane.Family) {
	m.families = families
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

// InMode initializes the counters that only that mode has.
func (m *proxyMetrics) InMode(mode v1alpha1.ProxyMode) {
	if mode != v1alpha1.ModeNFTables {
		return
	}
	for _, family := range m.families {
		m.nftablesFailures.WithLabelValues(string(family))
	}
}

// Queued records that a sync was requested.
func (m *proxyMetrics) Queued(families []dataplane.Family, now time.Time) {
	for _, family := range families {
		m.lastQueued.WithLabelValues(string(family)).Set(UnixSeconds(now))
	}
}

// Synced counts the outcome of a sync that ended at now.
func (m *proxyMetrics) Synced(rulesets map[dataplane.Family]*dataplane.Ruleset, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result], now time.Time) {
	for family, outcome := range outcomes {
		label, took := string(family), outcome.Took.Seconds()
		full := rulesets[family].Full
		m.syncs.WithLabelValues(label).Observe(took)
		if outcome.Value.Kind == v1alpha1.SyncFull || outcome.Err != nil && full {
			m.fullSyncs.WithLabelValues(label).Observe(took)
		} else {
			m.partialSyncs.WithLabelValues(label).Observe(took)
		}
		if outcome.Err != nil || outcome.Value.Failed {
			m.countFailure(label, rulesets[family])
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

// countFailure counts a failed sync. In mode NFTables only the counter of that mode increases, as in kube-proxy.
func (m *proxyMetrics) countFailure(family string, r *dataplane.Ruleset) {
	if r.Mode == v1alpha1.ModeNFTables {
		m.nftablesFailures.WithLabelValues(family).Inc()
		return
	}
	m.failures.WithLabelValues(family).Inc()
	if !r.Full {
		m.partialFailures.WithLabelValues(family).Inc()
	}
}

// Programmed records what the store has learned from a sync.
func (m *proxyMetrics) Programmed(families map[dataplane.Family]desired.ProgrammedChanges) {
	for family, p := range families {
		for _, took := range p.Latencies {
			m.programming.WithLabelValues(string(family)).Observe(took.Seconds())
		}
		m.noLocal.WithLabelValues("internal", string(family)).Set(float64(p.NoLocal.Internal))
		m.noLocal.WithLabelValues("external", string(family)).Set(float64(p.NoLocal.External))
	}
}

// show updates the metrics of changes. Only one goroutine calls it.
func (m *proxyMetrics) show(c desired.ChangeTotals) {
	m.endpointsPending.Set(float64(c.EndpointsPending))
	m.servicesPending.Set(float64(c.ServicesPending))
	m.endpointChanges.Add(float64(c.Endpoints - m.shown.Endpoints))
	m.serviceChanges.Add(float64(c.Services - m.shown.Services))
	m.shown = c
}

// Answered counts an answer of the proxy's health port.
func (m *proxyMetrics) Answered(path string, code int) {
	answers := m.livez
	if path == "/healthz" {
		answers = m.healthz
	}
	answers.WithLabelValues(strconv.Itoa(code)).Inc()
}

// UnixSeconds returns a time as metrics have it: in seconds since 1970.
func UnixSeconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

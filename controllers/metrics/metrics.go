package metrics

import (
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/admission"
	"github.com/nodeproxy-io/nodeproxy/controllers/rollout"
)

// Kinds and operations of writes, as metric labels.
const (
	KindService       = "ServiceProxyRules"
	KindNode          = "NodeProxyRules"
	KindNodeStatus    = "NodeProxyRules/status" // for agents that do not respond
	KindSummary       = "NodeProxy/status"
	KindPolicyStatus  = "NodeProxyPolicy/status"
	KindServicePolicy = "ServiceProxyPolicy/status"
	KindNodeProxy     = "NodeProxy" // for the finalizer
	KindTaint         = "Node"      // for the startup taint
	KindDaemonSet     = "DaemonSet"
	KindConfigMap     = "ConfigMap"
	// With --manage-cluster-objects.
	KindAdmissionPolicy  = admission.KindPolicy
	KindAdmissionBinding = admission.KindBinding
	KindNamespace        = "Namespace"

	OpCreate  = "create"
	OpUpdate  = "update"
	OpApply   = "apply"
	OpRelease = "release"
	OpDelete  = "delete"
)

// Metrics are the controller's own metrics.
type Metrics struct {
	writes   *prometheus.CounterVec
	skipped  *prometheus.CounterVec
	rejected prometheus.Gauge
	leftOut  prometheus.Gauge
	render   *prometheus.HistogramVec
	nodes    *prometheus.GaugeVec
	checks   *prometheus.CounterVec
	leading  prometheus.Gauge
	toWrite  prometheus.Histogram
	rollout  *prometheus.GaugeVec
	shaped   *prometheus.GaugeVec
	events   *prometheus.CounterVec

	mu    sync.Mutex // guards leads, and keeps the gauges of the cluster consistent with it
	leads bool
}

// New registers the metrics.
func New(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodeproxy_controller_writes_total",
			Help: "Successful writes of rendered objects and of status, by kind and operation.",
		}, []string{"kind", "operation"}),
		skipped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodeproxy_controller_skipped_writes_total",
			Help: "Writes that were skipped because the object or status already has the desired content, by kind.",
		}, []string{"kind"}),
		rejected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nodeproxy_controller_unrendered_services",
			Help: "Services whose rules cannot be rendered or stored; each is named in an event. 0 while this controller stands by.",
		}),
		leftOut: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nodeproxy_controller_left_out_local_endpoints",
			Help: "Services whose local endpoints the NodeProxyRules of a node leave out because they are over a limit, added up over nodes; each Service is named in an event. 0 while this controller stands by.",
		}),
		render: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nodeproxy_controller_render_seconds",
			Help:    "Time to render one object, by kind.",
			Buckets: prometheus.ExponentialBuckets(0.00001, 4, 10),
		}, []string{"kind"}),
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nodeproxy_controller_nodes",
			Help: "Nodes by state (total, programmed, not_programmed, stale, audit, fallback, lagging), as in the status of NodeProxy; a node can have several. Only the controller that leads has them.",
		}, []string{"state"}),
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodeproxy_controller_agent_looks_total",
			Help: "Checks of the agents' Leases, by result (done, failed). While they fail, no agent is reported as not responding.",
		}, []string{"result"}),
	}
	m.rollout = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "nodeproxy_controller_rollout_nodes",
		Help: "Nodes by policy, empty for NodeProxy, and state (selected, updated, programmed, unavailable, waiting, missed). While some missed the deadline, the rollout is halted. Only the controller that leads has them.",
	}, []string{"policy", "state"})
	m.leading = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "nodeproxy_controller_leading",
		Help: "1 while this controller leads and writes, 0 while it stands by.",
	})
	m.toWrite = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "nodeproxy_controller_slice_change_to_write_seconds",
		Help:    "Time from the event of the first changed EndpointSlice of a Service until its rules were written. Large Services wait, see docs/architecture.md.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
	})
	m.shaped = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "nodeproxy_controller_service_policy_services",
		Help: "Services by ServiceProxyPolicy and state (selected, applied, ineffective, rejected); a Service can have several. Rejected are those that halted the change. Only the controller that leads has them.",
	}, []string{"policy", "state"})
	m.events = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nodeproxy_controller_events_total",
		Help: "Events by result (written; failed: the API server did not accept it; dropped: too many waited). Existing ones count as written.",
	}, []string{"result"})
	for _, c := range []prometheus.Collector{m.events, m.rollout, m.shaped, m.toWrite, m.leading, m.writes, m.skipped, m.rejected, m.leftOut, m.render, m.nodes, m.checks} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// Wrote counts a write.
func (m *Metrics) Wrote(kind, operation string) { m.writes.WithLabelValues(kind, operation).Inc() }

// Skip counts a write that would have changed nothing.
func (m *Metrics) Skip(kind string) { m.skipped.WithLabelValues(kind).Inc() }

// Rendered records the time to render an object.
func (m *Metrics) Rendered(kind string, took time.Duration) {
	m.render.WithLabelValues(kind).Observe(took.Seconds())
}

// ShowNodes sets the gauges of nodes if this controller leads.
func (m *Metrics) ShowNodes(n v1alpha1.NodeCounts) {
	m.show(func() {
		for state, count := range map[string]int32{
			"total": n.Total, "programmed": n.Programmed, "not_programmed": n.NotProgrammed, "stale": n.Stale,
			"audit": n.Audit, "fallback": n.Fallback, "lagging": n.Lagging,
		} {
			m.nodes.WithLabelValues(state).Set(float64(count))
		}
	})
}

// ShowRollouts sets the gauges of rollouts if this controller leads.
func (m *Metrics) ShowRollouts(states map[string]*rollout.State) {
	counts := map[string]map[string]int{}
	for policy, s := range states {
		counts[policy] = map[string]int{
			"selected": s.Nodes, "updated": s.Updated, "programmed": s.Programmed, "unavailable": s.Unavailable,
			"waiting": s.Pending, "missed": len(s.Missed),
		}
	}
	m.showPolicies(m.rollout, counts)
}

// ShowServicePolicies sets the gauges of policies, by name and state, if this controller leads.
func (m *Metrics) ShowServicePolicies(policies map[string]map[string]int) {
	m.showPolicies(m.shaped, policies)
}

func (m *Metrics) showPolicies(gauges *prometheus.GaugeVec, policies map[string]map[string]int) {
	m.show(func() {
		gauges.Reset() // some may be gone
		for name, states := range policies {
			for state, count := range states {
				gauges.WithLabelValues(name, state).Set(float64(count))
			}
		}
	})
}

// show sets gauges of the cluster if this controller leads: work that began before the lease was lost
// may end after it.
func (m *Metrics) show(set func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leads {
		set()
	}
}

// ShowRejected sets the number of rejected Services if this controller leads.
func (m *Metrics) ShowRejected(count int) {
	m.show(func() { m.rejected.Set(float64(count)) })
}

// Event counts an event by its result.
func (m *Metrics) Event(result string) { m.events.WithLabelValues(result).Inc() }

// ShowLeftOut sets for how many Services and nodes local endpoints are left out, if this controller
// leads.
func (m *Metrics) ShowLeftOut(count int) {
	m.show(func() { m.leftOut.Set(float64(count)) })
}

// Checked counts a check of the agents' Leases.
func (m *Metrics) Checked(err error) {
	result := "done"
	if err != nil {
		result = "failed"
	}
	m.checks.WithLabelValues(result).Inc()
}

// WroteSlice records the time from the change of a slice until the rules were written.
func (m *Metrics) WroteSlice(after time.Duration) { m.toWrite.Observe(after.Seconds()) }

// Lead records whether this controller leads. A standby exports no gauges of the cluster: they
// would become stale, and alerts would use them.
func (m *Metrics) Lead(leading bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leads = leading
	if leading {
		m.leading.Set(1)
		return
	}
	m.leading.Set(0)
	m.nodes.Reset()
	m.rollout.Reset()
	m.shaped.Reset()
	m.rejected.Set(0)
	m.leftOut.Set(0)
}

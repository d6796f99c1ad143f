package metrics

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

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

// prefix begins the names of the controller's own metrics.
const prefix = "nodeproxy_controller_"

// Metrics are the controller's own metrics.
type Metrics struct {
	writes     *prometheus.CounterVec
	skipped    *prometheus.CounterVec
	unrendered prometheus.Gauge
	leftOut    prometheus.Gauge
	render     *prometheus.HistogramVec
	nodes      *prometheus.GaugeVec
	problems   *prometheus.GaugeVec
	checks     *prometheus.CounterVec
	leading    prometheus.Gauge
	toWrite    prometheus.Observer
	rollout    *prometheus.GaugeVec
	shaped     *prometheus.GaugeVec
	events     *prometheus.CounterVec

	mu    sync.Mutex // guards leads, and keeps the gauges of the cluster consistent with it
	leads bool
	// shown are the series of problems.
	shown map[Problem]bool
}

// States of Problem.
const (
	Stale   = "stale"   // its agent does not respond
	Lagging = "lagging" // its agent has not applied older rules
	Missed  = "missed"  // it did not apply a change of settings in time
)

// Problem is a node and what is wrong with it.
type Problem struct{ Node, State, Policy string }

// New registers the metrics.
func New(r prometheus.Registerer) *Metrics {
	factory := promauto.With(r)
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return factory.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge { return gauges(name, help).WithLabelValues() }
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return factory.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	}
	histograms := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return factory.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets}, labels)
	}
	return &Metrics{
		writes:     counters("writes_total", "Successful writes of rendered objects and of status, by kind and operation.", "kind", "operation"),
		skipped:    counters("skipped_writes_total", "Writes that were skipped because the object or status already has the desired content, by kind.", "kind"),
		unrendered: gauge("unrendered_services", "Services whose rules cannot be rendered or stored; each is named in an event. 0 while this controller stands by."),
		leftOut:    gauge("left_out_local_endpoints", "Services whose local endpoints the NodeProxyRules of a node leave out because they are over a limit, added up over nodes; each Service is named in an event. 0 while this controller stands by."),
		render:     histograms("render_seconds", "Time to render one object, by kind.", prometheus.ExponentialBuckets(0.00001, 4, 10), "kind"),
		nodes:      gauges("nodes", "Nodes by state (total, programmed, not_programmed, stale, audit, fallback, lagging), as in the status of NodeProxy; a node can have several. Only the controller that leads has them.", "state"),
		problems:   gauges("node_problem", "1 while a node is stale or lagging, or has missed the deadline of the rollout of policy (empty: NodeProxy), by state (stale, lagging, missed). Only on the leader.", "node", "state", "policy"),
		shown:      map[Problem]bool{},
		checks:     counters("agent_checks_total", "Checks of the agents' Leases, by result (done, failed). While they fail, no agent is reported as not responding.", "result"),
		rollout:    gauges("rollout_nodes", "Nodes by policy, empty for NodeProxy, and state (selected, updated, programmed, unavailable, waiting, missed). While some missed the deadline, the rollout is halted. Only the controller that leads has them.", "policy", "state"),
		leading:    gauge("leading", "1 while this controller leads and writes, 0 while it stands by."),
		toWrite:    histograms("slice_change_to_write_seconds", "Time from the event of the first changed EndpointSlice of a Service until its rules were written. Large Services wait, see docs/architecture.md.", prometheus.ExponentialBuckets(0.001, 2, 16)).WithLabelValues(),
		shaped:     gauges("service_policy_services", "Services by ServiceProxyPolicy and state (selected, applied, ineffective, rejected); a Service can have several. Rejected are those that halted the change. Only the controller that leads has them.", "policy", "state"),
		events:     counters("events_total", "Events by result (written; failed: the API server did not accept it; dropped: too many waited). Existing ones count as written.", "result"),
	}
}

// Wrote counts a write.
func (m *Metrics) Wrote(kind, operation string) { m.writes.WithLabelValues(kind, operation).Inc() }

// Skip counts a write that would have changed nothing.
func (m *Metrics) Skip(kind string) { m.skipped.WithLabelValues(kind).Inc() }

// Rendered records the time to render an object.
func (m *Metrics) Rendered(kind string, took time.Duration) {
	m.render.WithLabelValues(kind).Observe(took.Seconds())
}

// ShowNodes sets the gauges of nodes, and names those that are stale or lagging, if this controller
// leads.
func (m *Metrics) ShowNodes(n v1alpha1.NodeCounts, stale, lagging []string) {
	m.show(func() {
		m.showProblems(problems(Stale, "", stale), Stale)
		m.showProblems(problems(Lagging, "", lagging), Lagging)
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
	var missed []Problem
	for policy, s := range states {
		missed = append(missed, problems(Missed, policy, s.Missed)...)
		counts[policy] = map[string]int{
			"selected": s.Nodes, "updated": s.Updated, "programmed": s.Programmed, "unavailable": s.Unavailable,
			"waiting": s.Pending, "missed": len(s.Missed),
		}
	}
	m.showPolicies(m.rollout, counts)
	m.show(func() { m.showProblems(missed, Missed) })
}

func problems(state, policy string, nodes []string) []Problem {
	out := make([]Problem, 0, len(nodes))
	for _, node := range nodes {
		out = append(out, Problem{Node: node, State: state, Policy: policy})
	}
	return out
}

// showProblems replaces those of a state. A problem that persists never lacks its series: an alert
// would begin to wait again.
func (m *Metrics) showProblems(now []Problem, state string) {
	gone := maps.Clone(m.shown)
	for _, p := range now {
		delete(gone, p)
		m.shown[p] = true
		m.problems.WithLabelValues(p.Node, p.State, p.Policy).Set(1)
	}
	for p := range gone {
		if p.State == state {
			delete(m.shown, p)
			m.problems.DeleteLabelValues(p.Node, p.State, p.Policy)
		}
	}
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

// ShowUnrendered sets the number of unrendered Services if this controller leads.
func (m *Metrics) ShowUnrendered(count int) {
	m.show(func() { m.unrendered.Set(float64(count)) })
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
	m.problems.Reset()
	clear(m.shown)
	m.rollout.Reset()
	m.shaped.Reset()
	m.unrendered.Set(0)
	m.leftOut.Set(0)
}

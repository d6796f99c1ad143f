package liveness

import (
	"cmp"
	"fmt"
	"maps"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
)

const (
	// Interval is the time between two checks of the agents' Leases.
	Interval = 10 * time.Second
	// Silence is the age of an agent's last heartbeat at which it counts as not responding.
	Silence = v1alpha1.AgentLeaseSeconds * time.Second
	// lagLimit is how old rules must be before an agent lags that has not applied them.
	lagLimit = time.Minute
	// missedChecks is after how many missed checks the time between two does not count: the
	// controller was stopped, or could not reach the API server, and perhaps neither could the agents.
	missedChecks = 3
)

// Liveness knows which agents do not respond and which lag behind. It uses only the controller's
// own clock: the clocks of two machines may differ, so of a Lease only its changes count.
type Liveness struct {
	interval  time.Duration // between two checks
	namespace string        // of the Leases

	mu        sync.Mutex // guards everything below
	lastCheck time.Time
	agents    map[string]*agentState // by the Lease's name
	versions  []versionSample        // oldest first
	lag       sets.Set[string]       // the nodes that lag behind
	lagKnown  bool
}

// agentState is what is known about one agent.
type agentState struct {
	renewed metav1.MicroTime // in its Lease; zero without a Lease
	seen    time.Time        // when that was first seen, by the controller's clock
	marked  bool             // it has been reported as not responding
	checked time.Time        // the last check that found a Lease or rules
	idle    time.Time        // the last check that found nothing to apply
}

// versionSample is the newest resourceVersion of all ServiceProxyRules at some time.
type versionSample struct {
	at     time.Time
	newest string
}

// New returns what is known before the first check.
func New(interval time.Duration, namespace string) *Liveness {
	return &Liveness{interval: interval, namespace: namespace, agents: map[string]*agentState{}}
}

// check evaluates the current objects. It returns the rules of the nodes to be reported as not
// responding, Leases of silent agents without rules, and whether the set of lagging nodes has
// changed.
func (l *Liveness) check(now time.Time, leases []coordinationv1.Lease, rules []v1alpha1.NodeProxyRules, newest string) (silent []*v1alpha1.NodeProxyRules, orphans []*coordinationv1.Lease, changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.skipUnseen(now)
	byName := make(map[string]*coordinationv1.Lease, len(leases))
	for i := range leases {
		if v1alpha1.IsAgentLeaseName(leases[i].Name) {
			byName[leases[i].Name] = &leases[i]
		}
	}
	required, known := l.required(now, newest)
	lag := sets.Set[string]{}
	for i := range rules {
		r := &rules[i]
		name := v1alpha1.AgentLeaseName(r.Name)
		lease := byName[name]
		delete(byName, name)
		state := l.note(name, lease, now)
		switch {
		case now.Sub(state.seen) < Silence:
			state.marked = false
		case reports.NotResponding(r):
			state.marked = true
		case state.marked:
			// The condition was overwritten: if by the agent, its Lease follows; otherwise it is
			// reported again.
			state.marked, state.seen = false, now
		default:
			silent = append(silent, r)
		}
		if appliesNothing(r) {
			state.idle = now
		}
		taking := now.Sub(state.idle) < lagLimit // it takes over, or cannot
		applied := cmp.Or(lease, &coordinationv1.Lease{}).Annotations[v1alpha1.AnnotationAppliedResourceVersion]
		if known && !reports.Absent(r) && !reports.NotResponding(r) && !taking && objects.Older(applied, required) {
			lag.Insert(r.Name)
		}
	}
	for name, lease := range byName {
		if now.Sub(l.note(name, lease, now).seen) >= Silence {
			orphans = append(orphans, lease)
		}
	}
	maps.DeleteFunc(l.agents, func(_ string, state *agentState) bool { return !state.checked.Equal(now) })
	changed = known != l.lagKnown || !lag.Equal(l.lag)
	l.lag, l.lagKnown = lag, known
	return silent, orphans, changed
}

// skipUnseen excludes time without checks. The caller holds mu.
func (l *Liveness) skipUnseen(now time.Time) {
	gap := now.Sub(l.lastCheck)
	if !l.lastCheck.IsZero() && gap > missedChecks*l.interval {
		for _, state := range l.agents {
			state.seen = state.seen.Add(gap)
		}
		for i := range l.versions {
			l.versions[i].at = l.versions[i].at.Add(gap)
		}
	}
	l.lastCheck = now
}

// note records an agent's Lease, nil if it has none. The caller holds mu.
func (l *Liveness) note(name string, lease *coordinationv1.Lease, now time.Time) *agentState {
	renewed := ptr.Deref(cmp.Or(lease, &coordinationv1.Lease{}).Spec.RenewTime, metav1.MicroTime{})
	state := l.agents[name]
	if state == nil {
		state = &agentState{renewed: renewed, seen: now}
		l.agents[name] = state
	}
	if !state.renewed.Equal(&renewed) && !renewed.IsZero() {
		state.renewed, state.seen = renewed, now
	}
	state.checked = now
	return state
}

// required returns the version that every agent should have applied by now: the lowest of the newest
// ones of the last minute, because the newest rules may have been deleted since. It is known after
// the first minute. The caller holds mu.
func (l *Liveness) required(now time.Time, newest string) (version string, known bool) {
	l.versions = append(l.versions, versionSample{at: now, newest: newest})
	for len(l.versions) > 1 && now.Sub(l.versions[1].at) >= lagLimit {
		l.versions = l.versions[1:]
	}
	if now.Sub(l.versions[0].at) < lagLimit {
		return "", false
	}
	version = newest
	for _, sample := range l.versions {
		if objects.Older(sample.newest, version) {
			version = sample.newest
		}
	}
	return version, true
}

// Lagging returns the nodes that lag behind; false: not known yet.
func (l *Liveness) Lagging() (nodes []string, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return sets.List(l.lag), l.lagKnown
}

// reported notes that an agent was reported as not responding.
func (l *Liveness) reported(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if state := l.agents[v1alpha1.AgentLeaseName(node)]; state != nil {
		state.marked = true
	}
}

// silentCondition is the condition of an agent that does not respond.
func (l *Liveness) silentCondition(rules *v1alpha1.NodeProxyRules) metav1.Condition {
	l.mu.Lock()
	defer l.mu.Unlock()
	state := cmp.Or(l.agents[v1alpha1.AgentLeaseName(rules.Name)], &agentState{})
	return SilentCondition(rules, l.namespace, state.renewed.Time)
}

// SilentCondition is the condition Programmed of a node whose agent does not respond. renewed is the
// renewal in the agent's Lease in namespace, by the node's clock; zero without a Lease.
func SilentCondition(rules *v1alpha1.NodeProxyRules, namespace string, renewed time.Time) metav1.Condition {
	lease := namespace + "/" + v1alpha1.AgentLeaseName(rules.Name)
	c := metav1.Condition{
		Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionUnknown,
		Reason: v1alpha1.ReasonAgentNotResponding, ObservedGeneration: rules.Generation,
	}
	const whatToDo = "the node retains its rules, but changes do not reach it, and the rest of this status may be stale. Check there that nodeproxy-agent runs and reaches the API server."
	switch {
	case !renewed.IsZero():
		c.Message = fmt.Sprintf("%s%s (Lease %s): %s",
			v1alpha1.MessageSilentSince, renewed.UTC().Format(time.RFC3339), lease, whatToDo)
	case rules.Status.Agent != nil:
		c.Message = fmt.Sprintf("No heartbeat from the agent (Lease %s does not exist): %s", lease, whatToDo)
	default:
		c.Message = fmt.Sprintf("No agent has ever reported for this node (Lease %s does not exist). Check that nodeproxy-agent runs there, with this Node's name as --node-name, and reaches the API server.", lease)
	}
	return c
}

// appliesNothing reports whether the agent has nothing to apply, because another proxy is active on
// its node or its rules were removed.
func appliesNothing(rules *v1alpha1.NodeProxyRules) bool {
	c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
	return c != nil && c.Status == metav1.ConditionFalse &&
		(c.Reason == v1alpha1.ReasonConflictingProxy || c.Reason == v1alpha1.ReasonRemoved)
}

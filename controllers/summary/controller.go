package summary

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/nodealerts"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/removal"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

const (
	// passInterval is the least time between two passes over the whole cluster.
	passInterval = time.Second
	// countsInterval is the least time between two writes for each node, up to longestCounts, if only counts and
	// messages differ: all agents receive each, and in a rollout something differs all the time.
	countsInterval, longestCounts = 10 * time.Millisecond, 10 * time.Second
)

// Reconciler writes the status of NodeProxy: the inventory, unrendered Services, and what the nodes
// report. It runs once at a time; the cache is synced before it starts.
type Reconciler struct {
	Client    client.Client // reads come from the cache
	Clock     clock.PassiveClock
	Metrics   *metrics.Metrics
	Services  services
	Liveness  lagging
	Findings  *reports.Findings
	Events    recorder
	Version   string
	Namespace string // of the agents' DaemonSet

	lastPass, lastWrite time.Time
	// unsettled are the Services of which it is not known yet in this term whether they are
	// unrendered. nil before the first term.
	unsettled map[types.NamespacedName]bool
	term      int
}

// services is what is known about Services between their reconciliations.
type services interface {
	// Unrendered returns the unrendered Services, newest first.
	Unrendered() []v1alpha1.UnrenderedService
	// Delayed returns the Services that have no rules yet because their namespaces have
	// used up their bytes.
	Delayed() []types.NamespacedName
	// Settled reports whether it is known in this term if a Service is unrendered.
	Settled(types.NamespacedName) bool
	// CurrentTerm identifies the term.
	CurrentTerm() int
}

// lagging names the nodes that lag behind; false: not known yet.
type lagging interface{ Lagging() ([]string, bool) }

type recorder interface {
	Transition(np *v1alpha1.NodeProxy, what events.Kind, note string)
	TransitionOfNode(rules *v1alpha1.NodeProxyRules, what events.Kind, note string)
	ModeOfNode(rules *v1alpha1.NodeProxyRules, what events.Kind, note string)
	WarnNodeProxy(np *v1alpha1.NodeProxy, reason, action, note string)
}

// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxies,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxies/status,verbs=update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create
// +kubebuilder:rbac:groups=apps,resources=daemonsets,verbs=list;watch,resourceNames=nodeproxy-agent,namespace=nodeproxy-system
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch,namespace=nodeproxy-system

// Setup adds the reconciler to a manager.
func (r *Reconciler) Setup(s watches.Setup) error {
	return s.Add("nodeproxy", r,
		watches.On(&v1alpha1.NodeProxy{}),
		watches.On(&v1alpha1.NodeProxyRules{}),
		watches.By(&v1alpha1.NodeProxyRules{}, nodealerts.Handler(s.Leadership, r.Events)),
		watches.On(&v1alpha1.ServiceProxyRules{}, watches.ComesOrGoes()),
		watches.On(&corev1.Service{}, watches.Changed(func(svc *corev1.Service) []any { return []any{render.Eligible(svc)} })),
		watches.On(&appsv1.DaemonSet{}),
		watches.On(&corev1.Pod{}))
}

// Reconcile computes the status from the caches and writes it if it differs.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	np, err := objects.NodeProxy(ctx, r.Client)
	if err != nil || np == nil {
		return ctrl.Result{}, err
	}
	if wait := passInterval - r.Clock.Since(r.lastPass); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	r.lastPass = r.Clock.Now()
	status, next, err := r.status(ctx, np)
	if err != nil {
		return ctrl.Result{}, err
	}
	if equality.Semantic.DeepEqual(np.Status, *status) {
		r.Metrics.Skip(metrics.KindSummary)
		return ctrl.Result{RequeueAfter: next}, nil
	}
	least := min(time.Duration(status.Nodes.Total)*countsInterval, longestCounts)
	if wait := least - r.Clock.Since(r.lastWrite); wait > 0 && sameButCounts(&np.Status, status) {
		return ctrl.Result{RequeueAfter: retry.Sooner(next, wait)}, nil
	}
	changed := np.DeepCopy()
	changed.Status = *status
	if err := r.Client.Status().Update(ctx, changed); err != nil {
		return retry.IgnoreRace(fmt.Errorf("update the status of NodeProxy: %w", err))
	}
	r.lastWrite = r.Clock.Now()
	r.Metrics.Wrote(metrics.KindSummary, metrics.OpUpdate)
	r.recordTransitions(np, changed)
	return ctrl.Result{RequeueAfter: next}, nil
}

// sameButCounts reports whether two statuses differ only in counts of nodes, messages, and the Services that
// are named as unrendered.
func sameButCounts(a, b *v1alpha1.NodeProxyStatus) bool {
	rest := func(of *v1alpha1.NodeProxyStatus) *v1alpha1.NodeProxyStatus {
		s := of.DeepCopy()
		s.Nodes, s.Unrendered = v1alpha1.NodeCounts{}, nil
		for i := range s.Conditions {
			s.Conditions[i].Message = ""
		}
		return s
	}
	return equality.Semantic.DeepEqual(rest(a), rest(b))
}

// status computes the status and sets the metrics of nodes. Until unrendered Services and lagging nodes
// are known, it repeats those of before the start. next is when it may change with time alone; 0: it
// cannot.
func (r *Reconciler) status(ctx context.Context, np *v1alpha1.NodeProxy) (status *v1alpha1.NodeProxyStatus, next time.Duration, err error) {
	var rules v1alpha1.NodeProxyRulesList
	if err := r.Client.List(ctx, &rules); err != nil {
		return nil, 0, fmt.Errorf("list NodeProxyRules: %w", err)
	}
	eligible, err := r.eligibleServices(ctx)
	if err != nil {
		return nil, 0, err
	}
	unrendered := r.Services.Unrendered()
	inventory, err := r.inventory(ctx, eligible, unrendered)
	if err != nil {
		return nil, 0, err
	}
	status = np.Status.DeepCopy()
	status.ObservedGeneration = np.Generation
	status.Version = r.Version
	status.Inventory = inventory
	complete := r.allSettled(eligible)
	if complete {
		status.UnrenderedServices = int32(len(unrendered))
		status.Unrendered = unrendered[:min(len(unrendered), maxUnrenderedNamed)]
	}
	status.Nodes = countNodes(rules.Items)
	lagging, known := r.Liveness.Lagging()
	if known {
		status.Nodes.Lagging = int32(len(lagging))
	} else {
		status.Nodes.Lagging = np.Status.Nodes.Lagging
	}
	r.Metrics.ShowNodes(status.Nodes, staleNodes(rules.Items), lagging)
	_, invalid := render.CompleteSettings((*v1alpha1.ProxySettings)(np.Spec.Settings))
	ready, next := readiness(rules.Items, status.Nodes, invalid, r.Clock.Now())
	agents, nextOfAgents, err := r.agentsDeployed(ctx, np)
	if err != nil {
		return nil, 0, err
	}
	apiServers := r.Findings.Of(reports.AboutAPIServers, &np.Status, v1alpha1.ConditionReady, v1alpha1.ReasonAPIServerUnreachable)
	ready = withRollout(ready, r.Findings.Of(reports.AboutRollout, &np.Status, v1alpha1.ConditionReady,
		v1alpha1.ReasonRolloutHalted, v1alpha1.ReasonPaused, v1alpha1.ReasonProgressing))
	ready, next = withProblems(ready, apiServers, agents), retry.Sooner(next, nextOfAgents)
	ready = withDetectLocal(ready, np, rules.Items)
	if objects.BeingRemoved(np) {
		ready, next = removal.Condition(np, rules.Items), 0
	}
	reports.Set(&status.Conditions, np.Generation, r.Clock.Now(), ready)
	setAbnormal(status, ready, np.Generation, r.Clock.Now())
	if agents == nil {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionAgentsDeployed)
	} else {
		reports.Set(&status.Conditions, np.Generation, r.Clock.Now(), *agents)
	}
	if !complete {
		next = passInterval
	}
	return status, next, nil
}

func (r *Reconciler) eligibleServices(ctx context.Context) (map[types.NamespacedName]bool, error) {
	var list corev1.ServiceList
	if err := r.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	out := make(map[types.NamespacedName]bool, len(list.Items))
	for i := range list.Items {
		if render.Eligible(&list.Items[i]) {
			out[client.ObjectKeyFromObject(&list.Items[i])] = true
		}
	}
	return out, nil
}

// inventory names every eligible Service except those without stored rules because they are
// unrendered, or because their namespace has used up its bytes: with these, no agent's list would
// agree with the inventory, and agents would not remove rules that others have deleted. It never
// depends on stored rules alone: rules that have vanished must be in it.
func (r *Reconciler) inventory(ctx context.Context, eligible map[types.NamespacedName]bool, unrendered []v1alpha1.UnrenderedService) (*v1alpha1.Inventory, error) {
	without := r.Services.Delayed()
	for _, s := range unrendered {
		without = append(without, types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
	}
	missing := map[types.NamespacedName]bool{}
	for _, key := range without {
		stored, err := objects.Get(ctx, r.Client, client.ObjectKey{Name: objects.RulesName(key)}, &v1alpha1.ServiceProxyRules{})
		if err != nil {
			return nil, err
		}
		missing[key] = !stored
	}
	names := make([]string, 0, len(eligible))
	for key := range eligible {
		if !missing[key] {
			names = append(names, objects.RulesName(key))
		}
	}
	inventory := render.Inventory(names)
	return &inventory, nil
}

// allSettled reports whether every Service that existed when the term began is known to be unrendered
// or not, or is gone.
func (r *Reconciler) allSettled(eligible map[types.NamespacedName]bool) bool {
	if term := r.Services.CurrentTerm(); r.unsettled == nil || r.term != term {
		r.term, r.unsettled = term, maps.Clone(eligible)
	}
	maps.DeleteFunc(r.unsettled, func(key types.NamespacedName, _ bool) bool { return !eligible[key] || r.Services.Settled(key) })
	return len(r.unsettled) == 0
}

// agentsDeployed returns the condition AgentsDeployed, nil if the controller does not run the
// agents. next is when it may change with time alone; 0: it cannot.
func (r *Reconciler) agentsDeployed(ctx context.Context, np *v1alpha1.NodeProxy) (condition *metav1.Condition, next time.Duration, err error) {
	if !agentdeploy.Managed(np) {
		return nil, 0, nil
	}
	found := r.Findings.Of(reports.AboutDaemonSet, &np.Status, v1alpha1.ConditionAgentsDeployed,
		v1alpha1.ReasonNoAgentImage, v1alpha1.ReasonDaemonSetDenied)
	if found.Reason != "" {
		return new(reports.False(v1alpha1.ConditionAgentsDeployed, found.Reason, found.Message)), 0, nil
	}
	daemonSet, err := objects.Find[appsv1.DaemonSet](ctx, r.Client, client.ObjectKey{Namespace: r.Namespace, Name: agentdeploy.Name})
	if err != nil {
		return nil, 0, err
	}
	var pods corev1.PodList // of the cache, which has those of the agents alone
	if err := r.Client.List(ctx, &pods, client.InNamespace(r.Namespace)); err != nil {
		return nil, 0, fmt.Errorf("list the agents' pods: %w", err)
	}
	state := agentdeploy.Assess(daemonSet, pods.Items, r.Clock.Now())
	return &state.Condition, state.Next, nil
}

// recordTransitions writes an event if the state of a rollout of NodeProxy's own settings changes, and
// when the warning about detectLocal appears.
func (r *Reconciler) recordTransitions(before, after *v1alpha1.NodeProxy) {
	was, is := reports.Ready(before.Status.Conditions), reports.Ready(after.Status.Conditions)
	if what, worth := transitionOfNodeProxy(was.Reason, is.Reason); worth {
		r.Events.Transition(before, what, fmt.Sprintf("Generation %d: %s", after.Generation, cmp.Or(is.Message, "All nodes are programmed.")))
	}
	if is.Message == detectLocalNotSet && was.Message != detectLocalNotSet {
		r.Events.WarnNodeProxy(before, eventDetectLocalNotSet, actionConfigure, is.Message)
	}
}

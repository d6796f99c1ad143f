package controllers

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// retrySoon is the pause before another try when somebody else's write came
// first: about the time the watch needs to bring it.
const retrySoon = 25 * time.Millisecond

// Options are what the reconcilers need beside the manager.
type Options struct {
	// Version is the release that NodeProxy reports.
	Version string
	// Clock tells the time; required.
	Clock clock.WithTicker
	// Namespace is that of the agents' Leases, of their DaemonSet and of the
	// addresses of the API servers; required.
	Namespace string
	// AgentImage is the agents' image unless NodeProxy names one. Empty: it must.
	AgentImage string
	// ExposeAgentMetrics has the agents that the controller runs answer /metrics on
	// every address of their node, and not on 127.0.0.1 alone.
	ExposeAgentMetrics bool
	// ShareProxyPorts has the pods of these agents not reserve the ports that a
	// kube-proxy has, too.
	ShareProxyPorts bool
	// ManageClusterObjects has the controller keep the admission policies and the
	// labels of its namespace, for which it needs more rights than by the manifests.
	ManageClusterObjects bool
	// APIServerProbe asks whether an API server answers. Nil: a real one, by the
	// manager's configuration.
	APIServerProbe APIServerProbe
	// Registerer takes the metrics; required.
	Registerer prometheus.Registerer
	// APIServers are URLs of API servers that the program was started with. No Service
	// gets their addresses.
	APIServers []string
	// Leadership says when this process may write. Nil: always.
	Leadership Leadership
	// FormatVersions are the versions of the rendered objects' format that can be
	// written. Default: those that this release knows.
	FormatVersions []int32
	// Concurrency is how many Services, and how many Nodes, are reconciled at
	// a time. Default: 4.
	Concurrency int
}

// complete sets what was left to defaults.
func (o *Options) complete() {
	if o.Concurrency <= 0 {
		o.Concurrency = 4
	}
	if o.Leadership == nil {
		o.Leadership = always{}
	}
	if len(o.FormatVersions) == 0 {
		o.FormatVersions = v1alpha1.FormatVersions()
	}
}

// NewScheme returns a scheme with every kind that the reconcilers use.
func NewScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionv1.AddToScheme, appsv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme, coordinationv1.AddToScheme, networkingv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("build scheme: %w", err)
		}
	}
	return s, nil
}

// What the program does around the reconcilers: looking for its namespace.
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get

// SetupWithManager adds indexes and reconcilers to a manager, whose scheme must
// come from NewScheme and whose cache from CacheOptions.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, o Options) error {
	o.complete()
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	metrics, err := newMetrics(o.Registerer)
	if err != nil {
		return err
	}
	s := newShared(mgr, o, metrics)
	o.Leadership.Notify(s.lead)
	for what, err := range map[string]error{
		"queue of events":                    mgr.Add(s.queue),
		"reconcilers that render":            s.setupRendering(),
		"reconciler of rollouts":             s.setupRollout(),
		"reconciler of NodeProxy's status":   s.setupSummary(),
		"reconciler of the agents":           s.setupAgents(),
		"reconciler of API server addresses": s.setupAPIServers(),
		"removal reconciler":                 s.setupRemoval(),
		"reconciler of ServiceProxyPolicies": s.setupServicePolicies(),
		"startup taint reconciler":           s.setupStartupTaint(),
		"reconciler of cluster objects":      s.setupClusterObjects(),
	} {
		if err != nil {
			return fmt.Errorf("set up the %s: %w", what, err)
		}
	}
	return nil
}

// shared is what the reconcilers have in common while they are set up.
type shared struct {
	Options
	mgr      ctrl.Manager
	metrics  *metrics
	queue    *eventQueue
	events   *events
	memory   *serviceMemory
	findings *findings
	formats  *formats
	leftOut  *leftOut
	wakers   wakers
	// overrides are what policies make of Services.
	overrides *overrides
}

func newShared(mgr ctrl.Manager, o Options, m *metrics) *shared {
	w := newWakers()
	queue := newEventQueue(o.Leadership, mgr.GetClient(), o.Clock, m)
	s := &shared{
		Options: o, mgr: mgr, metrics: m, wakers: w,
		queue: queue, events: newEvents(queue, o.Clock),
		memory:   newServiceMemory(m, w.summary.wake),
		findings: newFindings(w.summary.wake),
		formats:  newFormats(mgr.GetClient(), o.FormatVersions),
		leftOut:  newLeftOut(m),

		overrides: newOverrides(mgr.GetClient(), o.Clock),
	}
	queue.givenUp = s.eventLost
	return s
}

// eventLost has what an event was to say said again when it is found again.
func (s *shared) eventLost(series eventSeries) {
	if series.about.Kind != "Service" {
		return // a transition, which does not come again
	}
	key := types.NamespacedName{Namespace: series.about.Namespace, Name: series.about.Name}
	if series.reason == eventLocalEndpointsLeftOut {
		s.leftOut.unsay(key)
		return
	}
	s.memory.unsay(key, series.reason)
}

// lead begins a term as the leader, or ends one. What is remembered is of the
// term before: another controller may have written since.
func (s *shared) lead(leading bool) {
	s.metrics.lead(leading)
	if !leading {
		return
	}
	s.memory.newTerm()
	s.queue.newTerm(s.Clock.Now())
	s.queue.retractAll(eventLocalEndpointsLeftOut)
	s.leftOut.newTerm()
	s.overrides.newTerm()
	s.formats.forget()
	s.findings.newTerm()
	s.wakers.wakeAll()
}

// setupRendering adds what renders Services and Nodes, in which format.
func (s *shared) setupRendering() error {
	ranges := newServiceRanges(s.mgr.GetCache(), s.mgr.GetAPIReader(), s.mgr.GetCache(), s.Clock)
	if err := s.mgr.Add(ranges); err != nil {
		return err
	}
	services := &ServiceReconciler{
		leadership: s.Leadership, client: s.mgr.GetClient(), live: s.mgr.GetAPIReader(), events: s.events, clock: s.Clock,
		metrics: s.metrics, memory: s.memory, formats: s.formats, overrides: s.overrides,
		surroundings: &surroundings{client: s.mgr.GetClient(), ranges: ranges, apiServers: s.APIServers},
	}
	if err := services.setup(s.mgr, controllerOptions(s.Concurrency), s.wakers.services, s.wakers.keptServices, ranges.changed); err != nil {
		return err
	}
	nodes := &NodeReconciler{
		leadership: s.Leadership, client: s.mgr.GetClient(), live: s.mgr.GetAPIReader(), events: s.events, clock: s.Clock,
		metrics: s.metrics, formats: s.formats, leftOut: s.leftOut,
	}
	if err := nodes.setup(s.mgr, controllerOptions(s.Concurrency), s.wakers.nodes); err != nil {
		return err
	}
	format := &FormatReconciler{
		leadership: s.Leadership, formats: s.formats, changed: func() { s.wakers.services.wake(); s.wakers.nodes.wake() },
	}
	return format.setup(s.mgr, controllerOptions(1))
}

// setupRollout adds what gives changed settings to nodes. It decides about all of them
// at a time, so there is one worker.
func (s *shared) setupRollout() error {
	rollouts := &RolloutReconciler{
		leadership: s.Leadership, client: s.mgr.GetClient(), clock: s.Clock, metrics: s.metrics, findings: s.findings, events: s.events,
	}
	return rollouts.setup(s.mgr, controllerOptions(1), s.wakers.rollout)
}

// setupSummary adds what looks after the agents, and writes the status of
// NodeProxy.
func (s *shared) setupSummary() error {
	liveness := newLiveness(lookInterval, s.Namespace)
	summary := &NodeProxyReconciler{
		leadership: s.Leadership, client: s.mgr.GetClient(), clock: s.Clock, metrics: s.metrics, services: s.memory,
		liveness: liveness, findings: s.findings, events: s.events, version: s.Version, namespace: s.Namespace,
	}
	if err := summary.setup(s.mgr, controllerOptions(1), s.wakers.summary); err != nil {
		return err
	}
	return s.mgr.Add(&agentWatcher{
		leadership: s.Leadership, client: s.mgr.GetClient(), live: s.mgr.GetAPIReader(), clock: s.Clock, metrics: s.metrics,
		liveness: liveness, changed: s.wakers.summary.wake,
	})
}

func (s *shared) setupServicePolicies() error {
	r := &ServicePolicyReconciler{
		leadership: s.Leadership, client: s.mgr.GetClient(), events: s.events, clock: s.Clock, metrics: s.metrics,
		overrides: s.overrides, resume: s.wakers.keptServices.wake,
	}
	return r.setup(s.mgr, controllerOptions(1), s.wakers.servicePolicies)
}

func (s *shared) setupAgents() error {
	agents := &AgentsReconciler{
		leadership: s.Leadership, client: s.mgr.GetClient(), clock: s.Clock, metrics: s.metrics, findings: s.findings,
		namespace: s.Namespace, image: s.AgentImage, exposeMetrics: s.ExposeAgentMetrics, shareProxyPorts: s.ShareProxyPorts,
	}
	return agents.setup(s.mgr, controllerOptions(1), s.wakers.agents)
}

func (s *shared) setupAPIServers() error {
	probe := s.APIServerProbe
	if probe == nil {
		var err error
		if probe, err = newAPIServerProbe(s.mgr.GetConfig()); err != nil {
			return err
		}
	}
	apiServers := &APIServersReconciler{
		leadership: s.Leadership, client: s.mgr.GetClient(), probe: probe, metrics: s.metrics, findings: s.findings,
		events: s.events, namespace: s.Namespace,
	}
	return apiServers.setup(s.mgr, controllerOptions(1), s.wakers.apiServers)
}

func (s *shared) setupRemoval() error {
	removal := &RemovalReconciler{
		leadership: s.Leadership, client: s.mgr.GetClient(), live: s.mgr.GetAPIReader(), events: s.events, clock: s.Clock,
		metrics: s.metrics, namespace: s.Namespace,
	}
	return removal.setup(s.mgr, controllerOptions(1))
}

func (s *shared) setupStartupTaint() error {
	taints := &StartupTaintReconciler{
		leadership: s.Leadership, client: s.mgr.GetClient(), live: s.mgr.GetAPIReader(), metrics: s.metrics, namespace: s.Namespace,
	}
	return taints.setup(s.mgr, controllerOptions(s.Concurrency))
}

func (s *shared) setupClusterObjects() error {
	if !s.ManageClusterObjects {
		return nil
	}
	objects := &ClusterObjectsReconciler{
		leadership: s.Leadership, client: s.mgr.GetClient(), events: s.events, clock: s.Clock, metrics: s.metrics,
		namespace: s.Namespace,
	}
	return objects.setup(s.mgr, controllerOptions(1), s.wakers.clusterObjects, s.wakers.clusterObjects.wake)
}

// controllerOptions has retries at most 30 s apart, so that the end of an outage
// is not slept through.
func controllerOptions(concurrency int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: concurrency,
		// The priority queue of controller-runtime 0.24 can deadlock when it is shut
		// down with work left (kubernetes-sigs/controller-runtime#3538): the process
		// then waits to be killed, and another leader for the Lease to expire.
		UsePriorityQueue: new(false),
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
			5*time.Millisecond, 30*time.Second),
	}
}

// switchedOn tells whether nodeproxy was ever switched on: NodeProxy exists, or
// rendered objects of a time when it did. Otherwise nothing is rendered, nor
// while NodeProxy is being removed with all that was rendered.
func switchedOn(ctx context.Context, c client.Reader) (bool, error) { return mayCreate(ctx, c, c) }

// mayCreate is switchedOn for what is about to be created. Each kind has a watch of its own:
// the cache may know that NodeProxy is gone and still hold rendered objects that went
// before it, so the API server itself must have one.
func mayCreate(ctx context.Context, cached, live client.Reader) (bool, error) {
	np, err := nodeProxy(ctx, cached)
	if err != nil || np != nil {
		return np != nil && !beingRemoved(np), err
	}
	return anyRendered(ctx, live)
}

func anyRendered(ctx context.Context, c client.Reader) (bool, error) {
	var services v1alpha1.ServiceProxyRulesList
	if err := c.List(ctx, &services, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list ServiceProxyRules: %w", err)
	}
	if len(services.Items) > 0 {
		return true, nil
	}
	var nodes v1alpha1.NodeProxyRulesList
	if err := c.List(ctx, &nodes, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list NodeProxyRules: %w", err)
	}
	return len(nodes.Items) > 0, nil
}

// nodeProxy returns the NodeProxy, nil when there is none.
func nodeProxy(ctx context.Context, c client.Reader) (*v1alpha1.NodeProxy, error) {
	np := &v1alpha1.NodeProxy{}
	found, err := get(ctx, c, client.ObjectKey{Name: v1alpha1.NodeProxyName}, np)
	if err != nil || !found {
		return nil, err
	}
	return np, nil
}

// get reads an object and tells whether it exists.
func get(ctx context.Context, c client.Reader, key client.ObjectKey, into client.Object) (bool, error) {
	if err := c.Get(ctx, key, into); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get %T %s: %w", into, key, err)
	} else if err != nil {
		return false, nil
	}
	return true, nil
}

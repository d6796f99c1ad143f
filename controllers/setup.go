package controllers

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/addresses"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
	"github.com/nodeproxy-io/nodeproxy/controllers/agents"
	"github.com/nodeproxy-io/nodeproxy/controllers/apiservers"
	"github.com/nodeproxy-io/nodeproxy/controllers/clusterobjects"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/formats"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/liveness"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/nodes"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/overrides"
	"github.com/nodeproxy-io/nodeproxy/controllers/removal"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/rollouts"
	"github.com/nodeproxy-io/nodeproxy/controllers/servicepolicies"
	"github.com/nodeproxy-io/nodeproxy/controllers/services"
	"github.com/nodeproxy-io/nodeproxy/controllers/startuptaint"
	"github.com/nodeproxy-io/nodeproxy/controllers/summary"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// Options are what the reconcilers need beside the manager.
type Options struct {
	// Version is the release that NodeProxy reports.
	Version string
	// Clock is the clock; required.
	Clock clock.WithTicker
	// Namespace is that of the agents' Leases, of their DaemonSet and of the
	// addresses of the API servers; required.
	Namespace string
	// Agents are how the controller runs the agents, in Namespace.
	Agents agentdeploy.Options
	// ManageClusterObjects: the controller maintains the admission policies and the
	// labels of its namespace. It needs more permissions than the manifests grant.
	ManageClusterObjects bool
	// APIServerProbe checks whether an API server answers. Nil: a real one, with the
	// manager's configuration.
	APIServerProbe apiservers.Probe
	// Registerer registers the metrics; required.
	Registerer prometheus.Registerer
	// APIServers are URLs of API servers that the program was started with. No Service
	// gets their addresses.
	APIServers []string
	// Leadership decides when this process may write. Nil: always.
	Leadership leader.Leadership
	// FormatVersions are the versions of the rendered objects' format that can be
	// written. Default: those that this release knows.
	FormatVersions []int32
	// Concurrency is how many Services, and how many Nodes, are reconciled at
	// a time. Default: 4.
	Concurrency int
}

func (o *Options) complete() {
	if o.Concurrency <= 0 {
		o.Concurrency = 4
	}
	if o.Leadership == nil {
		o.Leadership = leader.Always{}
	}
	if len(o.FormatVersions) == 0 {
		o.FormatVersions = v1alpha1.FormatVersions()
	}
	o.Agents.Namespace = o.Namespace
}

// The program itself reads its namespace.
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get

// SetupWithManager adds indexes and reconcilers to a manager, whose scheme must
// come from objects.NewScheme and whose cache from CacheOptions.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, o Options) error {
	o.complete()
	if err := objects.AddIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	m := metrics.New(o.Registerer)
	s := newShared(mgr, o, m)
	o.Leadership.Notify(s.lead)
	for what, err := range map[string]error{
		"queue of events":                    mgr.Add(s.queue),
		"reconciler of Services":             s.setupServices(),
		"reconciler of NodeProxy's status":   s.setupSummary(),
		"reconciler of API server addresses": s.setupAPIServers(),
		"reconciler of cluster objects":      s.setupClusterObjects(),
		"reconciler of Nodes": (&nodes.Reconciler{
			Client: s.client, Live: s.live, Events: s.events, Clock: s.Clock, Metrics: m, Formats: s.formats, LeftOut: s.leftOut,
		}).Setup(s.with(s.Concurrency, s.wakers.nodes)),
		"reconciler of the format": (&formats.Reconciler{
			Formats: s.formats, Changed: func() { s.wakers.services.wake(); s.wakers.nodes.wake() },
		}).Setup(s.with(1, nil)),
		"reconciler of rollouts": (&rollouts.Reconciler{
			Client: s.client, Clock: s.Clock, Metrics: m, Findings: s.findings, Events: s.events,
		}).Setup(s.with(1, s.wakers.rollout)), // one worker: each decision is about all nodes
		"reconciler of ServiceProxyPolicies": (&servicepolicies.Reconciler{
			Client: s.client, Events: s.events, Clock: s.Clock, Metrics: m, Overrides: s.overrides, Resume: s.wakers.retaining.wake,
		}).Setup(s.with(1, s.wakers.servicePolicies)),
		"reconciler of the agents": (&agents.Reconciler{
			Client: s.client, Findings: s.findings, Applier: &objects.Applier{Clock: s.Clock, Metrics: m}, Agents: s.Agents,
		}).Setup(s.with(1, s.wakers.agents)),
		"removal reconciler": (&removal.Reconciler{
			Client: s.client, Live: s.live, Events: s.events, Clock: s.Clock, Metrics: m, Namespace: s.Namespace,
		}).Setup(s.with(1, nil)),
		"startup taint reconciler": (&startuptaint.Reconciler{
			Client: s.client, Live: s.live, Metrics: m, Namespace: s.Namespace,
		}).Setup(s.with(s.Concurrency, nil)),
	} {
		if err != nil {
			return fmt.Errorf("set up the %s: %w", what, err)
		}
	}
	return nil
}

// waker triggers a reconciler although no object has changed.
type waker chan event.GenericEvent

// wake triggers it, unless a trigger is pending: everything is computed afresh each time.
func (w waker) wake() {
	select {
	case w <- event.GenericEvent{Object: &v1alpha1.NodeProxy{}}:
	default:
	}
}

// wakers trigger the reconcilers: each when this controller begins to lead.
type wakers struct {
	summary, services, nodes, rollout, agents, apiServers, servicePolicies, clusterObjects waker
	// retaining is for Services that retain their overrides; a new term reconciles all Services
	// anyway.
	retaining waker
}

func newWakers() wakers {
	one := func() waker { return make(waker, 1) }
	return wakers{one(), one(), one(), one(), one(), one(), one(), one(), one()}
}

func (w wakers) wakeAll() {
	for _, one := range []waker{w.summary, w.services, w.nodes, w.rollout, w.agents, w.apiServers, w.servicePolicies, w.clusterObjects} {
		one.wake()
	}
}

// shared is what the reconcilers have in common while they are set up.
type shared struct {
	Options
	mgr       ctrl.Manager
	client    client.Client // reads come from the cache
	live      client.Reader // reads come from the API server
	metrics   *metrics.Metrics
	queue     *events.Queue
	events    *events.Recorder
	memory    *services.Memory
	findings  *reports.Findings
	formats   *formats.Formats
	leftOut   *nodes.LeftOut
	overrides *overrides.Overrides
	wakers    wakers
}

func newShared(mgr ctrl.Manager, o Options, m *metrics.Metrics) *shared {
	w, c := newWakers(), mgr.GetClient()
	queue := events.NewQueue(o.Leadership, c, o.Clock, m)
	s := &shared{
		Options: o, mgr: mgr, client: c, live: mgr.GetAPIReader(), metrics: m, wakers: w,
		queue: queue, events: events.NewRecorder(queue, o.Clock),
		memory: services.NewMemory(m, w.summary.wake), findings: reports.NewFindings(w.summary.wake),
		formats: formats.New(c, o.FormatVersions), leftOut: nodes.NewLeftOut(m), overrides: overrides.New(c, o.Clock),
	}
	queue.GivenUp = s.eventLost
	return s
}

// eventLost ensures that a problem is reported again, whose event was lost, once it is found again.
func (s *shared) eventLost(series events.Series) {
	if series.About.Kind != "Service" {
		return // a transition, which does not recur
	}
	key := types.NamespacedName{Namespace: series.About.Namespace, Name: series.About.Name}
	if series.Reason == nodes.EventLocalEndpointsLeftOut {
		s.leftOut.Reported(key, false)
		return
	}
	s.memory.EventLost(key, series.Reason)
}

// lead begins a term as the leader, or ends one. Everything remembered is from an earlier
// term: another controller may have written since.
func (s *shared) lead(leading bool) {
	s.metrics.Lead(leading)
	if !leading {
		s.memory.EndTerm()
		return
	}
	s.memory.NewTerm()
	s.queue.NewTerm(s.Clock.Now())
	s.queue.RetractAll(nodes.EventLocalEndpointsLeftOut)
	s.leftOut.NewTerm()
	s.overrides.NewTerm()
	s.formats.Forget()
	s.findings.NewTerm()
	s.wakers.wakeAll()
}

func (s *shared) setupServices() error {
	ranges := addresses.NewRangeWatcher(s.mgr.GetCache(), s.live, s.Clock)
	if err := s.mgr.Add(ranges); err != nil {
		return err
	}
	r := &services.Reconciler{
		Client: s.client, Live: s.live, Events: s.events, Clock: s.Clock,
		Metrics: s.metrics, Memory: s.memory, Formats: s.formats, Overrides: s.overrides,
		Ranges: ranges.Request, APIServers: s.APIServers,
	}
	return r.Setup(s.with(s.Concurrency, s.wakers.services), s.wakers.retaining, ranges.Changed)
}

// setupSummary adds what monitors the agents, and writes the status of NodeProxy.
func (s *shared) setupSummary() error {
	agents := liveness.New(liveness.Interval, s.Namespace)
	r := &summary.Reconciler{
		Client: s.client, Clock: s.Clock, Metrics: s.metrics, Services: s.memory, Liveness: agents,
		Findings: s.findings, Events: s.events, Version: s.Version, Namespace: s.Namespace,
	}
	if err := r.Setup(s.with(1, s.wakers.summary)); err != nil {
		return err
	}
	return s.mgr.Add(&liveness.Watcher{
		Leadership: s.Leadership, Client: s.client, Live: s.live, Clock: s.Clock, Metrics: s.metrics,
		Liveness: agents, Changed: s.wakers.summary.wake,
	})
}

func (s *shared) setupAPIServers() error {
	probe := s.APIServerProbe
	if probe == nil {
		var err error
		if probe, err = apiservers.NewProbe(s.mgr.GetConfig()); err != nil {
			return err
		}
	}
	r := &apiservers.Reconciler{
		Client: s.client, Probe: probe, Metrics: s.metrics, Findings: s.findings,
		Events: s.events, Namespace: s.Namespace,
	}
	return r.Setup(s.with(1, s.wakers.apiServers))
}

func (s *shared) setupClusterObjects() error {
	if !s.ManageClusterObjects {
		return nil
	}
	r := &clusterobjects.Reconciler{
		Client: s.client, Events: s.events, Applier: &objects.Applier{Clock: s.Clock, Metrics: s.metrics}, Namespace: s.Namespace,
	}
	return r.Setup(s.with(1, s.wakers.clusterObjects), s.wakers.clusterObjects.wake)
}

// with sets up a reconciler with a number of workers and, unless it is nil, a waker.
func (s *shared) with(workers int, wake waker) watches.Setup {
	return watches.Setup{Manager: s.mgr, Leadership: s.Leadership, Wake: wake, Options: controller.Options{
		MaxConcurrentReconciles: workers,
		// The priority queue of controller-runtime 0.24 can deadlock when it is shut
		// down with work left (kubernetes-sigs/controller-runtime#3538): the process
		// then waits to be killed, and another leader for the Lease to expire.
		UsePriorityQueue: new(false),
		// At most 30 s apart, to notice the end of an outage soon.
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, 30*time.Second),
	}}
}

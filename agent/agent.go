// Package agent is the node's half of nodeproxy: it watches the rendered
// rules, keeps what is wanted, has the data planes make the kernel hold it,
// and reports what the kernel really holds.
package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/apiclient"
	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/drift"
	"github.com/nodeproxy-io/nodeproxy/agent/health"
	"github.com/nodeproxy-io/nodeproxy/agent/metrics"
	"github.com/nodeproxy-io/nodeproxy/agent/ownership"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/agent/syncer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// +kubebuilder:rbac:groups=nodeproxy.io,resources=serviceproxyrules;nodeproxyrules;nodeproxies,verbs=get;list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxyrules/status,verbs=patch;update

const (
	// shortestRetry and longestRetry bound the pauses after failed syncs.
	shortestRetry = 250 * time.Millisecond
	longestRetry  = 30 * time.Second
	// stopGrace is how long a write may go on after the agent is told to stop.
	stopGrace = 10 * time.Second
	// statusTick is how often it is looked whether the status is due, besides
	// after every event.
	statusTick = time.Second
)

// Options are what an Agent needs.
type Options struct {
	// NodeName is the name of the Node and of the agent's NodeProxyRules.
	NodeName string
	// Namespace is that of the agent's Lease. Empty: there is no Lease, and the
	// controller reports the node as AgentNotResponding.
	Namespace string
	// Client reads and writes the API.
	Client *apiclient.Client
	// Dataplanes holds one implementation for each IP family to be programmed.
	Dataplanes map[dataplane.Family]dataplane.Dataplane
	// IPTables returns the version and variant of iptables, for the status. It
	// is called after every Apply, not beside one. Nil: not reported.
	IPTables func() string
	// Flows is the node's connection tracking table. Nil: stale flows stay.
	Flows conntrack.Table
	// Tracking is the node's connection tracking as a whole. Nil: it is left as
	// it is and not reported.
	Tracking conntrack.Tracking
	// Probe asks the ports of other proxies, Spotter looks for their other signs.
	// Without a Spotter there is none but the ports.
	Probe   ownership.ProbeFunc
	Spotter dataplane.Spotter
	// Sockets says who has a port of ours that cannot be opened. Nil: nobody is asked.
	Sockets ownership.Sockets
	// ProxyHealthAddress and MetricsAddress are the proxy's own ports, opened
	// only once no other proxy is active. ProbeAddress is for the kubelet.
	ProxyHealthAddress, MetricsAddress, ProbeAddress string
	// StateDir is the folder of the last good set. Empty: none is kept or used.
	StateDir string
	// Identity is the boot and the network namespace that the agent runs in.
	Identity checkpoint.Identity
	// FormatVersions are the versions of rendered objects that the agent
	// understands. None: those of this release.
	FormatVersions []int32
	// Version is the agent's release, Kernel that of the node's kernel.
	Version, Kernel string
	Clock           clock.Clock
	Log             logr.Logger
}

// Agent is one node's agent.
type Agent struct {
	options Options
	log     logr.Logger
	store   *desired.Store
	fanout  *dataplane.Fanout
	loop    *syncer.Syncer
	writer  *status.Writer
	metrics *metrics.Metrics
	drift   *drift.Tracker
	errors  *apiclient.Errors
	// apiError returns the current error of reading the API, if any.
	apiError func() string
	lease    *apiclient.LeaseRenewer
	keeper   *setKeeper // nil: no last good set is kept
	// cleaners remove stale flows, one for each family and protocol.
	cleaners map[dataplane.Family][]*conntrack.Cleaner
	// checks serve health-check node ports, one for each family.
	checks   map[dataplane.Family]*health.Checks
	servers  servers
	tracking *conntrack.Tuner
	started  time.Time
	readied  chan struct{} // there is a complete set to apply
	poke     chan struct{} // the status may be due
	switched chan struct{} // the settings have changed
	instance string        // tells this agent's ports from those of another one

	mu   sync.Mutex // guards everything below
	turn turn
	// readyForGood: the pod is ready; see readiness.go.
	readyForGood bool
	settings     *v1alpha1.ProxySettings
	refused      string             // the refusal that was last logged
	said         map[subject]string // what was last logged
	// refusalsNamed is when refused Services were last named in the log.
	refusalsNamed time.Time
	iptables      string // version and variant, once known
	missing       bool   // it was logged that the own object is gone
	// wasRemoving: it was noted that rules are to be removed.
	wasRemoving bool
	// wasRestored: it was logged that the last good set is in use.
	wasRestored bool
}

// New returns an Agent that does nothing until it runs.
func New(options Options) (*Agent, error) {
	switch {
	case options.NodeName == "":
		return nil, errors.New("no node name")
	case options.Client == nil:
		return nil, errors.New("no client")
	case len(options.Dataplanes) == 0:
		return nil, errors.New("no data plane")
	case options.Probe == nil:
		return nil, errors.New("no probe for other proxies")
	case options.Clock == nil:
		return nil, errors.New("no clock")
	}
	a := &Agent{
		options: options,
		log:     options.Log,
		fanout:  dataplane.NewFanout(options.Dataplanes),
		metrics: metrics.New(),
		said:    map[subject]string{},
		started: options.Clock.Now(),
		readied: make(chan struct{}, 1),
		poke:    make(chan struct{}, 1),

		switched: make(chan struct{}, 1),
		instance: rand.Text(),
	}
	var err error
	if a.keeper, err = a.newKeeper(); err != nil {
		return nil, err
	}
	a.store = desired.New(desired.Options{
		Clock: options.Clock, NodeName: options.NodeName, Families: a.fanout.Families(), Formats: options.FormatVersions,
		Report: a.reportProblem, Former: a.keeper.lackedBy,
	})
	a.drift = drift.New(options.Clock, a.fanout.Families())
	defaults := v1alpha1.CompleteSettings(nil)
	minimum, verify := intervals(defaults)
	a.loop = syncer.New(syncer.Options{
		Clock: options.Clock, Sync: a.syncSome, Verify: a.progressing(a.verify), Look: a.progressing(a.lookAtRules),
		MinInterval: minimum, VerifyInterval: verify, RetryMin: shortestRetry, RetryMax: longestRetry,
	})
	a.fanout.Clock = options.Clock
	a.metrics.Begin(options.Version, a.fanout.Families())
	a.cleaners = a.newCleaners()
	a.tracking = conntrack.NewTuner(options.Tracking, options.Clock, a.log, a.metrics.Tracking)
	a.checks, a.servers = a.newChecks(), a.newServers()
	api := apiclient.NewMetrics(a.metrics.Registry)
	a.errors = apiclient.NewErrors(options.Clock, a.log, api)
	a.apiError = a.errors.First
	a.lease = apiclient.NewLeaseRenewer(apiclient.LeaseOptions{
		Client: options.Client, Clock: options.Clock, Log: a.log, Namespace: options.Namespace, Node: options.NodeName,
		Started: a.started, Applied: a.store.AppliedVersion, Metrics: api,
	})
	a.writer = status.NewWriter(options.Clock, options.Client.ApplyStatus, a.log, a.started)
	return a, nil
}

// Run works until ctx is done. It leaves all rules where they are.
func (a *Agent) Run(ctx context.Context) error {
	a.log.Info("Starting", "node", a.options.NodeName, "version", a.options.Version, "kernel", a.options.Kernel)
	var wg sync.WaitGroup
	a.keeper.look()
	wg.Go(func() { a.options.Client.Watch(ctx, a.options.NodeName, a.store, a.changed, a.errors) })
	wg.Go(func() { a.servers.kubelet.Run(ctx) })
	wg.Go(func() { a.lease.Run(ctx) })
	wg.Go(func() { a.restoreLoop(ctx) })
	wg.Go(func() { a.keepLoop(ctx) })
	wg.Go(func() { a.loop.Run(ctx) })
	wg.Go(func() {
		a.fanout.Follow(ctx, func(family dataplane.Family) {
			a.store.Recheck(family)
			a.trigger()
		})
	})
	wg.Go(func() { a.fanout.Watch(ctx, a.noticed) })
	wg.Go(func() { a.reportLoop(ctx) })
	for _, c := range slices.Concat(slices.Collect(maps.Values(a.cleaners))...) {
		wg.Go(func() { c.Run(ctx) })
	}
	wg.Go(func() { a.takeTurns(ctx) })
	wg.Wait()
	a.log.Info("Stopped; the rules in the kernel stay")
	return nil
}

// takeTurn opens the proxy's ports until ctx is done, which ends with our turn,
// and has the sync loop write.
func (a *Agent) takeTurn(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() { a.servers.health.Run(ctx) })
	wg.Go(func() { a.servers.metrics.Run(ctx) })
	wg.Go(func() { a.runChecks(ctx) })
	a.tracking.Forget()
	a.loop.TriggerAfresh()
}

// changed is called after every event of a watch.
func (a *Agent) changed() {
	a.noteObject()
	a.noteRestored()
	a.followRemoval()
	if a.store.TakePending() {
		a.trigger()
	}
	a.pokeStatus()
	if a.store.Ready() && a.oriented() {
		select {
		case a.readied <- struct{}{}:
		default:
		}
	}
}

// noteObject follows what the own object asks besides its rules: intervals,
// and whether it can be done at all.
func (a *Agent) noteObject() {
	a.mu.Lock()
	defer a.mu.Unlock()
	// Not before the lock: several watches come here at the same time, and what
	// one has read earlier must not undo what another has noted.
	settings, r, gone := a.store.OwnObject()
	if gone != a.missing {
		a.missing = gone
		switch {
		case gone && settings == nil:
			a.log.Info("There is no NodeProxyRules for this node: nothing is programmed until the controller renders it. See that the NodeProxy \"cluster\" exists, that the controller runs, and that --node-name is the Node's name", "nodeProxyRules", a.options.NodeName)
		case gone && a.store.Removing():
			a.log.Info("The NodeProxyRules of this node does not exist any more; its rules go with the NodeProxy", "nodeProxyRules", a.options.NodeName)
		case gone:
			a.log.Info("The NodeProxyRules of this node does not exist: the last known one stays in force, rules are kept and repaired", "nodeProxyRules", a.options.NodeName)
		default:
			a.log.Info("The NodeProxyRules of this node exists", "nodeProxyRules", a.options.NodeName)
		}
	}
	message := ""
	if r != nil {
		message = r.Message
	}
	if message != a.refused {
		a.refused = message
		if r != nil {
			a.log.Info("The NodeProxyRules of this node is not accepted", "reason", r.Reason, "message", r.Message)
		} else {
			a.log.Info("The NodeProxyRules of this node is accepted again")
			a.loop.TriggerAfresh()
		}
	}
	if settings != nil && settings != a.settings {
		a.settings = settings
		a.loop.SetIntervals(intervals(settings))
		a.loop.TriggerAfresh()
		select {
		case a.switched <- struct{}{}:
		default:
		}
	}
}

// reportProblem says in the log which entries of a Service cannot be used.
func (a *Agent) reportProblem(service dataplane.ServiceName, problem string) {
	a.log.Info("Part of a ServiceProxyRules cannot be used and is left out; hand edits are reverted by the controller", "service", service.String(), "problem", problem)
}

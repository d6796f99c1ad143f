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
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/apiclient"
	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint/recovery"
	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/drift"
	"github.com/nodeproxy-io/nodeproxy/agent/health"
	"github.com/nodeproxy-io/nodeproxy/agent/metrics"
	"github.com/nodeproxy-io/nodeproxy/agent/ownership"
	"github.com/nodeproxy-io/nodeproxy/agent/pause"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/agent/syncer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// +kubebuilder:rbac:groups=nodeproxy.io,resources=serviceproxyrules;nodeproxyrules;nodeproxies,verbs=get;list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxyrules/status,verbs=patch

const (
	// shortestRetry and longestRetry bound the pauses after failed syncs.
	shortestRetry = 250 * time.Millisecond
	longestRetry  = 30 * time.Second
)

// Options are what an Agent needs.
type Options struct {
	// NodeName is the name of the Node and of the agent's NodeProxyRules.
	NodeName string
	// Namespace is that of the agent's Lease. Empty: there is no Lease, and the
	// controller reports the node as AgentNotResponding.
	Namespace string
	Client    *apiclient.Client
	// Dataplanes has one implementation for each IP family to be programmed.
	Dataplanes map[dataplane.Family]dataplane.Dataplane
	// Userspace serves Services in the agent itself. Nil: the kernel serves all.
	Userspace interface {
		// LeaveToKernel has the kernel serve them.
		LeaveToKernel(ctx context.Context) error
		// Failing returns the endpoints that do not accept connections; nil: all do.
		Failing() *v1alpha1.UserspaceReport
		// Collector has the metrics.
		Collector() prometheus.Collector
	}
	// IPTables returns the version and variant of iptables, for the status. It is called
	// after every Apply, not beside one. Nil: not reported.
	IPTables func() string
	// Flows is the node's connection tracking table. Nil: stale flows stay.
	Flows conntrack.Table
	// Tracking has the settings and metrics of connection tracking. Nil: it is neither
	// changed nor reported.
	Tracking conntrack.Tracking
	// Probe probes the ports of other proxies, Spotter detects them in the kernel. Without
	// a Spotter, only ports are probed.
	Probe   ownership.ProbeFunc
	Spotter dataplane.Spotter
	// Serving asks another proxy what it has programmed. Nil: that is unknown.
	Serving ownership.ServingFunc
	// Sockets names the process that has a port of ours. Nil: it is not named.
	Sockets ownership.Sockets
	// ProxyHealthAddress and MetricsAddress are the proxy's own ports, opened only when no
	// other proxy is active. ProbeAddress is for the kubelet.
	ProxyHealthAddress, MetricsAddress, ProbeAddress string
	// StateDir is the directory of the checkpoint. Empty: none is written or used.
	StateDir string
	// Identity is the boot and the network namespace of the agent.
	Identity checkpoint.Identity
	// FormatVersions are the versions of rendered objects that the agent understands.
	// None: those of this release.
	FormatVersions []int32
	// Version is the agent's release, Kernel that of the node's kernel.
	Version, Kernel string
	Clock           clock.Clock
	Log             logr.Logger
}

// Agent is one node's agent.
type Agent struct {
	options  Options
	log      logr.Logger
	unusable problemLog
	store    *desired.Store
	fanout   *dataplane.Fanout
	loop     *syncer.Syncer
	writer   *status.Writer
	metrics  *metrics.Metrics
	drift    *drift.Tracker
	errors   *apiclient.Errors
	lease    *apiclient.LeaseRenewer
	owner    *ownership.Owner
	// recovery writes and restores the checkpoint; nil: there is none.
	recovery *recovery.Recovery
	// cleaners remove stale flows, one for each family and protocol.
	cleaners map[dataplane.Family][]*conntrack.Cleaner
	// checks serve health-check node ports, one for each family.
	checks   map[dataplane.Family]*health.Checks
	servers  servers
	tracking *conntrack.Tuner
	started  time.Time
	poke     pause.Wake // the status may be due

	mu       sync.Mutex // guards everything below
	ready    bool       // the pod is, from now on; see report.go
	settings *desired.Settings
	iptables string                 // version and variant, once known
	modes    []v1alpha1.ModeSupport // that the node could run
	probe    modeProbe              // for these
	missing  bool                   // it was logged that the own object is gone
	removing bool                   // it was logged that rules are to be removed
	rejected string                 // why the own object is not accepted, as last logged
	logged   map[subject]string
	// remain is what another active proxy does not take over; nil: unknown.
	remain map[dataplane.Family]string
	// leaving is when a removal began that retains all other rules; given is what it removed.
	leaving time.Time
	given   map[dataplane.Family]string
	// rejectionsLogged is when rejected Services were last named in the log.
	rejectionsLogged time.Time
}

// New returns an Agent that does not run yet. It has read the header of its checkpoint.
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
		logged:  map[subject]string{},
		given:   map[dataplane.Family]string{},
		started: options.Clock.Now(),
		poke:    pause.NewWake(),
	}
	var disk *checkpoint.Disk
	if options.StateDir != "" {
		file, err := checkpoint.New(options.StateDir, options.NodeName)
		if err != nil {
			return nil, err
		}
		disk = checkpoint.NewDisk(file, options.Identity, options.Clock, a.metrics.Checkpoint)
	}
	a.unusable = problemLog{log: a.log, clock: options.Clock}
	a.store = desired.New(desired.Options{
		Clock: options.Clock, NodeName: options.NodeName, Families: a.fanout.Families(), Formats: options.FormatVersions,
		Report: a.unusable.report, Former: func(names int, hash uint64) *checkpoint.Restorable {
			former, err := disk.LackedBy(names, hash)
			a.logUnusable(disk, err)
			return former
		},
	})
	a.drift = drift.New(options.Clock, a.fanout.Families())
	defaults := desired.NewSettings(nil)
	a.loop = syncer.New(syncer.Options{
		Clock: options.Clock, Sync: a.syncSome, Verify: a.progressing(a.verify), Check: a.progressing(a.checkRules),
		MinInterval: defaults.MinInterval, VerifyInterval: defaults.VerifyInterval, RetryMin: shortestRetry, RetryMax: longestRetry,
	})
	a.fanout.Clock = options.Clock
	a.metrics.Begin(options.Version, a.fanout.Families())
	a.cleaners = a.newCleaners()
	a.tracking = conntrack.NewTuner(options.Tracking, options.Clock, a.log, a.metrics.Tracking)
	instance := rand.Text()
	a.checks, a.servers = a.newChecks(), a.newServers(instance)
	if options.Userspace != nil {
		a.metrics.Registry.MustRegister(options.Userspace.Collector())
	}
	api := apiclient.NewMetrics(a.metrics.Registry)
	a.errors = apiclient.NewErrors(options.Clock, a.log, api)
	a.recovery = recovery.New(recovery.Options{
		Clock: options.Clock, Log: a.log, Disk: disk, Store: a.store, APIError: a.errors.First,
		Conflict: func() bool { return a.owner.Facts().Other != "" }, Restored: a.changed,
	})
	a.owner = ownership.New(ownership.Options{
		Clock: options.Clock, Log: a.log, Store: a.store, Probe: options.Probe, Spotter: options.Spotter, Instance: instance,
		FormerConflict: disk.Conflicted, Checks: a.metrics.Checks, Changed: a.pokeStatus, Cleared: a.loop.TriggerAfresh, Beside: a.beside,
	})
	a.logUnusable(disk, disk.Open())
	a.lease = apiclient.NewLeaseRenewer(apiclient.LeaseOptions{
		Client: options.Client, Clock: options.Clock, Log: a.log, Namespace: options.Namespace, Node: options.NodeName,
		Started: a.started, Applied: a.store.AppliedVersion, Metrics: api,
	})
	a.writer = status.NewWriter(options.Clock, options.Client.WriteStatus, a.log, a.started)
	return a, nil
}

// Run works until ctx is done. It leaves all rules in place.
func (a *Agent) Run(ctx context.Context) error {
	a.log.Info("Starting", "node", a.options.NodeName, "version", a.options.Version, "kernel", a.options.Kernel)
	var wg sync.WaitGroup
	wg.Go(func() { a.options.Client.Watch(ctx, a.options.NodeName, a.store, a.changed, a.errors) })
	wg.Go(func() { a.servers.kubelet.Run(ctx) })
	wg.Go(func() { a.lease.Run(ctx) })
	if a.recovery != nil {
		wg.Go(func() { a.recovery.Restore(ctx) })
		wg.Go(func() { a.recovery.Write(ctx) })
	}
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
	owned := false
	wg.Go(func() { owned = a.own(ctx) })
	wg.Wait()
	if owned {
		a.leaveToKernel()
	}
	a.log.Info("Stopped; the rules in the kernel stay")
	return nil
}

// own opens the proxy's ports and has the sync loop write whenever the agent owns the node's
// proxy rules, until ctx is done. It reports whether the agent owned them then.
func (a *Agent) own(ctx context.Context) bool {
	for a.owner.Acquire(ctx) {
		var wg sync.WaitGroup
		a.serve(a.owner.Context(), &wg)
		a.owner.Watch(ctx)
		wg.Wait()
		if ctx.Err() != nil {
			return true // what is known of the kernel remains valid
		}
		a.owner.Ended()
		a.store.Forget()
		a.drift.Forget()
		a.loop.TriggerAfresh() // Audit: there is something to compare
		a.pokeStatus()
	}
	return false
}

// leaveToKernel has the kernel serve what the agent itself serves, because no program would accept
// connections once it has stopped.
func (a *Agent) leaveToKernel() {
	if a.options.Userspace == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	if err := a.options.Userspace.LeaveToKernel(ctx); err != nil {
		a.log.Error(err, "Could not leave Services to the kernel; connections to them fail until the next agent runs")
	}
}

// serve opens the proxy's ports until ctx is done, and has the sync loop write.
func (a *Agent) serve(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() { a.servers.health.Run(ctx) })
	wg.Go(func() { a.servers.metrics.Run(ctx) })
	wg.Go(func() { a.runChecks(ctx) })
	a.tracking.Forget()
	a.forgetRemain()
	a.loop.TriggerAfresh()
}

// changed is called after every event of a watch.
func (a *Agent) changed() {
	a.noteObject()
	a.recovery.Observe()
	a.noteRemoval()
	if a.store.TakePending() {
		a.trigger()
	}
	a.pokeStatus()
	a.owner.Readied()
}

// trigger asks the sync loop for a sync.
func (a *Agent) trigger() {
	a.metrics.Proxy.Queued(a.fanout.Families(), a.options.Clock.Now())
	a.loop.Trigger()
}

// noteObject applies what the own object asks of the sync loop, and logs whether the object
// exists and is accepted.
func (a *Agent) noteObject() {
	a.mu.Lock()
	defer a.mu.Unlock()
	// Only with the lock: several watches come here at the same time, and an older state
	// must not replace a newer one.
	settings, r, gone := a.store.OwnObject()
	if gone != a.missing {
		a.missing = gone
		message := "The NodeProxyRules of this node exists"
		switch {
		case gone && settings == nil:
			message = "There is no NodeProxyRules for this node; nothing is programmed until the controller renders it"
		case gone && a.store.CurrentRemoval().Requested:
			message = "The NodeProxyRules of this node no longer exists; its rules are removed with the NodeProxy"
		case gone:
			message = "The NodeProxyRules of this node does not exist; the last known one stays applied"
		}
		a.log.Info(message, "nodeProxyRules", a.options.NodeName)
	}
	if r != nil && r.Message != a.rejected {
		a.rejected = r.Message
		a.log.Info("The NodeProxyRules of this node is not accepted", "reason", r.Reason, "message", r.Message)
	} else if r == nil && a.rejected != "" {
		a.rejected = ""
		a.log.Info("The NodeProxyRules of this node is accepted again")
		a.loop.TriggerAfresh()
	}
	if settings != nil && settings != a.settings {
		a.settings = settings
		a.loop.SetIntervals(settings.MinInterval, settings.VerifyInterval)
		a.loop.TriggerAfresh()
		a.owner.Switched()
	}
}

// logUnusable logs why the checkpoint cannot be used.
func (a *Agent) logUnusable(disk *checkpoint.Disk, err error) {
	if err != nil {
		a.log.Info("The checkpoint cannot be used; the next one replaces it", "file", disk.Path(), "problem", err.Error())
	}
}

// Package agent is the node's half of nodeproxy: it watches the rendered
// rules, keeps what is wanted, has the data planes make the kernel hold it,
// and reports what the kernel really holds.
package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/health"
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
	// Client reads and writes the API.
	Client *Client
	// Dataplanes holds one implementation for each IP family to be programmed.
	Dataplanes map[dataplane.Family]dataplane.Dataplane
	// IPTables returns the version and variant of iptables, for the status. It
	// is called after every Apply, not beside one. Nil: not reported.
	IPTables func() string
	// Probe looks for another proxy.
	Probe ProbeFunc
	// ProxyHealthAddress and MetricsAddress are the proxy's own ports, opened
	// only once no other proxy is active. ProbeAddress is for the kubelet.
	ProxyHealthAddress, MetricsAddress, ProbeAddress string
	// Version is the agent's release, Kernel that of the node's kernel.
	Version, Kernel string
	Clock           clock.Clock
	Log             logr.Logger
}

// Agent is one node's agent.
type Agent struct {
	options Options
	log     logr.Logger
	store   *store
	fanout  *dataplane.Fanout
	loop    *syncer.Syncer
	writer  *statusWriter
	metrics *metrics
	started time.Time
	readied chan struct{} // there is a complete set to apply
	poke    chan struct{} // the status may be due

	mu        sync.Mutex // guards everything below
	turn      bool       // no other proxy is active: we may write
	otherMode string     // of another proxy that is active; empty: none
	// unanswered: the last look for another proxy got no answer.
	unanswered bool
	settled    bool // see health.State
	settings   *v1alpha1.ProxySettings
	refused    string // the refusal that was last logged
	failure    string // the failure that was last logged
	warned     string // the warnings that were last logged
	unserved   string // the refused Services that were last logged
	iptables   string // version and variant, once known
	missing    bool   // it was logged that the own object is gone
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
		metrics: newMetrics(),
		started: options.Clock.Now(),
		readied: make(chan struct{}, 1),
		poke:    make(chan struct{}, 1),
	}
	a.store = newStore(options.Clock, options.NodeName, a.fanout.Families(), a.reportProblem)
	defaults := v1alpha1.CompleteSettings(nil)
	minimum, verify := intervals(defaults)
	a.loop = syncer.New(syncer.Options{
		Clock: options.Clock, Sync: a.sync, Verify: a.verify,
		MinInterval: minimum, VerifyInterval: verify, RetryMin: shortestRetry, RetryMax: longestRetry,
	})
	a.writer = &statusWriter{clock: options.Clock, apply: options.Client.applyStatus, log: a.log, started: a.started}
	return a, nil
}

// Run works until ctx is done. It leaves all rules where they are.
func (a *Agent) Run(ctx context.Context) error {
	a.log.Info("Starting", "node", a.options.NodeName, "version", a.options.Version, "kernel", a.options.Kernel, "server", a.options.Client.server)
	var wg sync.WaitGroup
	trouble := newAPITrouble(a.options.Clock, a.log, a.options.Client.server, a.metrics.watchTrouble)
	for _, w := range watchers(a.options.Client, a.options.Clock, a.store, trouble, a.changed) {
		wg.Go(func() { w.run(ctx) })
	}
	wg.Go(func() {
		a.server("probes for the kubelet", a.options.ProbeAddress, "--health-probe-bind-address").Run(ctx)
	})
	wg.Go(func() { a.loop.Run(ctx) })
	wg.Go(func() { a.reportLoop(ctx) })
	wg.Go(func() {
		if a.awaitTurn(ctx) {
			a.takeTurn(ctx, &wg)
		}
	})
	wg.Wait()
	a.log.Info("Stopped; the rules in the kernel stay")
	return nil
}

// takeTurn opens the proxy's ports and lets the sync loop write.
func (a *Agent) takeTurn(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() {
		a.server("health of the proxy", a.options.ProxyHealthAddress, "--proxy-health-bind-address").Run(ctx)
	})
	wg.Go(func() { a.server("metrics", a.options.MetricsAddress, "--metrics-bind-address").Run(ctx) })
	a.mu.Lock()
	a.turn = true
	a.mu.Unlock()
	a.loop.TriggerAfresh()
}

// server returns the HTTP server that goes with a flag.
func (a *Agent) server(name, address, flagName string) *health.Server {
	s := &health.Server{Name: name, Address: address, Flag: flagName, Clock: a.options.Clock, Log: a.log}
	switch flagName {
	case "--proxy-health-bind-address":
		s.Handler = health.ProxyHandler(a.health)
	case "--metrics-bind-address":
		s.Handler = health.MetricsHandler("iptables", a.metrics.handler())
	default:
		s.Handler = health.KubeletHandler(a.health)
	}
	return s
}

// changed is called after every event of a watch.
func (a *Agent) changed() {
	a.noteObject()
	if a.store.takeNews() {
		a.loop.Trigger()
	}
	a.pokeStatus()
	if a.store.ready() {
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
	settings, r, gone := a.store.object()
	if gone != a.missing {
		a.missing = gone
		switch {
		case gone && settings == nil:
			a.log.Info("There is no NodeProxyRules for this node: nothing is programmed until the controller renders it. See that the NodeProxy \"cluster\" exists, that the controller runs, and that --node-name is the Node's name", "nodeProxyRules", a.options.NodeName)
		case gone:
			a.log.Info("The NodeProxyRules of this node does not exist: the last known one stays in force, rules are kept and repaired", "nodeProxyRules", a.options.NodeName)
		default:
			a.log.Info("The NodeProxyRules of this node exists", "nodeProxyRules", a.options.NodeName)
		}
	}
	message := ""
	if r != nil {
		message = r.message
	}
	if message != a.refused {
		a.refused = message
		if r != nil {
			a.log.Info("The NodeProxyRules of this node is not accepted", "reason", r.reason, "message", r.message)
		} else {
			a.log.Info("The NodeProxyRules of this node is accepted again")
			a.loop.TriggerAfresh()
		}
	}
	if settings != nil && settings != a.settings {
		a.settings = settings
		a.loop.SetIntervals(intervals(settings))
		a.loop.TriggerAfresh()
	}
}

// sync writes what has changed to the kernel. The sync loop calls it.
func (a *Agent) sync(ctx context.Context) error {
	if !a.mayWrite() {
		return nil
	}
	b := a.store.prepare()
	if len(b.rulesets) == 0 {
		a.store.commit(b, nil, nil)
		a.pokeStatus()
		return nil
	}
	applyCtx, cancel := finishing(ctx)
	defer cancel()
	start := a.options.Clock.Now()
	outcomes := a.fanout.Apply(applyCtx, b.rulesets)
	end := a.options.Clock.Now()
	a.noteVersion()
	kind := syncKind(b.rulesets, outcomes)
	report := &v1alpha1.SyncReport{Time: seconds(end), DurationMilliseconds: end.Sub(start).Milliseconds(), Kind: kind}
	succeeded := false
	for _, outcome := range outcomes {
		if outcome.Err == nil {
			succeeded = true
			report.ServicesChanged += int32(outcome.Value.ServicesChanged)
		}
	}
	if !succeeded {
		report = nil
	}
	first := a.store.commit(b, outcomes, report)
	a.metrics.synced(kind, end.Sub(start), end, outcomes)
	err := dataplane.JoinErrors(outcomes)
	if ctx.Err() == nil {
		a.logSync(err, kind, end.Sub(start), report)
		a.logWarnings(a.store.warnings())
		a.logRefused(a.store.refusedNames())
	}
	if first {
		a.log.Info("The kernel holds a first complete set of rules", "duration", end.Sub(start), "servicesChanged", report.ServicesChanged)
		a.settle()
		a.loop.VerifySoon()
	}
	a.pokeStatus()
	return err
}

// syncKind is Full if some family's kernel was compared in full. A data plane
// may do so unasked; of one that failed only what it was asked is known.
func syncKind(rulesets map[dataplane.Family]*dataplane.Ruleset, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result]) v1alpha1.SyncKind {
	for family, outcome := range outcomes {
		if outcome.Value.Kind == v1alpha1.SyncFull || outcome.Err != nil && rulesets[family].Full {
			return v1alpha1.SyncFull
		}
	}
	return v1alpha1.SyncPartial
}

func (a *Agent) noteVersion() {
	if a.options.IPTables == nil {
		return
	}
	version := a.options.IPTables()
	a.mu.Lock()
	a.iptables = version
	a.mu.Unlock()
}

// finishing returns a context that outlives ctx by stopGrace, so that a write
// that has begun when the agent is told to stop can end.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(stopGrace, cancel) })
	return out, func() { stop(); cancel() }
}

// mayWrite reports whether there is a complete set that we may apply now.
func (a *Agent) mayWrite() bool {
	a.mu.Lock()
	turn := a.turn
	a.mu.Unlock()
	return turn && a.store.ready()
}

func (a *Agent) logSync(err error, kind v1alpha1.SyncKind, took time.Duration, report *v1alpha1.SyncReport) {
	a.mu.Lock()
	former := a.failure
	a.failure = ""
	if err != nil {
		a.failure = err.Error()
	}
	a.mu.Unlock()
	switch {
	case err != nil && err.Error() != former:
		a.log.Error(err, "Could not write everything to the kernel; what could be written is written, all else stays as it was. Trying again with growing pauses", "kind", kind, "duration", took)
	case err == nil && former != "":
		a.log.Info("Writing to the kernel works again", "kind", kind, "duration", took)
	}
	if report != nil {
		a.log.V(2).Info("Synced", "kind", kind, "duration", took, "servicesChanged", report.ServicesChanged)
	}
}

// logWarnings says what could not be done besides the rules of Services, when
// that changes.
func (a *Agent) logWarnings(warnings []string) {
	joined := strings.Join(warnings, "; ")
	a.mu.Lock()
	former := a.warned
	a.warned = joined
	a.mu.Unlock()
	switch {
	case joined == former:
	case joined != "":
		a.log.Info("The rules of Services are written, but not all else could be done on this node", "warnings", warnings)
	default:
		a.log.Info("What could not be done on this node besides the rules of Services is done now")
	}
}

// logRefused says which Services the kernel does not take, when that changes.
func (a *Agent) logRefused(names []string) {
	joined := strings.Join(names, ", ")
	a.mu.Lock()
	former := a.unserved
	a.unserved = joined
	a.mu.Unlock()
	switch {
	case joined == former:
	case joined != "":
		a.log.Info("The kernel refuses rules of some Services, which keep those they had; the status of the NodeProxyRules says why", "count", len(names), "services", examples(names))
	default:
		a.log.Info("The kernel takes the rules of all Services again")
	}
}

// verify compares the whole kernel to what is wanted and repairs it. The sync
// loop calls it.
func (a *Agent) verify(ctx context.Context) error {
	if !a.mayWrite() {
		return nil
	}
	rulesets := a.store.verifiable()
	outcomes := a.fanout.Verify(ctx, rulesets)
	a.metrics.compared(outcomes)
	again := a.store.verified(outcomes)
	for family, outcome := range outcomes {
		if outcome.Value.Count > 0 {
			a.log.Info("The kernel differed from what is wanted; repairing", "ipFamily", family, "differences", outcome.Value.Count, "examples", examples(outcome.Value.Examples))
		}
	}
	a.pokeStatus()
	if err := dataplane.JoinErrors(outcomes); err != nil {
		return fmt.Errorf("verifying: %w", err)
	}
	if again {
		return a.sync(ctx)
	}
	return nil
}

// reportLoop writes the status whenever it is due.
func (a *Agent) reportLoop(ctx context.Context) {
	for ctx.Err() == nil {
		s := a.store.snapshot()
		a.metrics.show(s)
		f := a.facts()
		if a.writer.write(ctx, s, f) && f.proxyMode != "" {
			a.settle()
		}
		timer := a.options.Clock.NewTimer(statusTick)
		select {
		case <-ctx.Done():
		case <-a.poke:
		case <-timer.C():
		}
		timer.Stop()
	}
}

func (a *Agent) facts() facts {
	f := facts{
		version: a.options.Version, started: a.started, kernel: a.options.Kernel,
		families: a.fanout.Families(), proxyMode: a.conflict(),
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	f.iptables, f.unanswered = a.iptables, a.unanswered
	return f
}

func (a *Agent) pokeStatus() {
	select {
	case a.poke <- struct{}{}:
	default: // a poke is waiting already
	}
}

// settle notes that a first set is applied, or that it is reported why not.
func (a *Agent) settle() {
	a.mu.Lock()
	a.settled = true
	a.mu.Unlock()
}

// health is the state that probes ask for.
func (a *Agent) health() health.State {
	s := a.store.snapshot()
	a.mu.Lock()
	settled := a.settled
	a.mu.Unlock()
	out := health.State{
		Now: s.now, Started: a.started, Overdue: a.loop.Overdue(), Settled: settled,
		Families: make(map[string]health.FamilyState, len(s.families)),
		Eligible: s.own != nil && !s.own.Spec.Node.Draining,
	}
	for family, f := range s.families {
		out.Families[string(family)] = health.FamilyState{LastUpdated: f.lastUpdated, OldestPending: f.oldestPending}
	}
	return out
}

// reportProblem says in the log which entries of a Service cannot be used.
func (a *Agent) reportProblem(service dataplane.ServiceName, problem string) {
	a.log.Info("Part of a ServiceProxyRules cannot be used and is left out; hand edits are reverted by the controller", "service", service.String(), "problem", problem)
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

const (
	// patience is how long anything may take before it counts as not delivered.
	patience = 30 * time.Second
	// silence is how long nothing may arrive before everything has.
	silence = 700 * time.Millisecond
	// repeats is how many endpoint changes are measured for each size.
	repeats = 5
	// churnPace and churnTime are of the continuous changes.
	churnPace = 100 * time.Millisecond
	churnTime = 20 * time.Second
)

// goal is for the bytes that a node receives if one endpoint of a Service changes.
func goal(endpoints int) float64 {
	switch {
	case endpoints <= 1:
		return 600
	case endpoints <= 10:
		return 700
	}
	return 2000
}

// rig is a cluster that is measured.
type rig struct {
	*results
	cluster   *cluster.Cluster
	nodeproxy *install.Nodeproxy
	world     *world
	fleet     *fleet
	reports   *reports
	// leader and standby are the controllers.
	leader, standby *cluster.Process
	progress        func(format string, args ...any)

	mu     sync.Mutex
	errors []error // guarded by mu: what went wrong in the background
}

// failed notes an error of a goroutine, of which the first ones are reported.
func (r *rig) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.errors) < 10 {
		r.errors = append(r.errors, err)
	}
}

// scenario is one thing to measure.
type scenario struct {
	name string
	run  func(context.Context) error
}

// measure starts a cluster and measures all scenarios. What was measured is returned even if one
// fails.
func measure(ctx context.Context, o options, progress func(string, ...any)) (_ *results, err error) {
	scheme, err := install.Scheme()
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, cluster.Options{Scheme: scheme, NoControllers: true, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before the cluster stops, which would fail all watches
	r := &rig{
		results: &results{options: o}, cluster: c, progress: progress,
		nodeproxy: &install.Nodeproxy{Cluster: c, Bin: o.bin, Config: o.config}, world: newWorld(c, o.nodes, o.services, o.sizes),
	}
	r.endpoints = r.world.endpoints()
	if err := r.prepare(ctx); err != nil {
		return r.results, err
	}
	for _, s := range r.scenarios() {
		if len(o.only) > 0 && !slices.Contains(o.only, s.name) {
			continue
		}
		progress("%s", s.name)
		if err := s.run(ctx); err != nil {
			return r.results, errors.Join(fmt.Errorf("%s: %w", s.name, err), errors.Join(r.errors...))
		}
		r.first().drop()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.results, errors.Join(r.errors...)
}

func (r *rig) first() *awaited { return r.fleet.first }

func (r *rig) scenarios() []scenario {
	return []scenario{
		{"bytes of one change", r.bytesOfChanges},
		{"idle", r.idle},
		{"10 changes a second", r.churn},
		{"pods", r.pods},
		{"rollout of 1,000 endpoints", func(ctx context.Context) error { return r.rollout(ctx, 1000) }},
		{"rollout of 5,000 endpoints", func(ctx context.Context) error { return r.rollout(ctx, 5000) }},
		{"node of 100 pods", r.nodeDown},
		{"settings", r.settings},
		{"200 agents list", r.herd},
		{"failover", r.failover},
		{"Service of 60,000 endpoints", r.huge},
	}
}

// prepare fills the cluster, renders everything from nothing and starts the agents.
func (r *rig) prepare(ctx context.Context) error {
	if err := r.nodeproxy.Prepare(ctx); err != nil {
		return err
	}
	start := time.Now()
	if err := r.world.fill(ctx); err != nil {
		return err
	}
	r.progress("%d nodes, %d Services and %d endpoints written in %s", r.nodes, r.services, r.endpoints, rounded(time.Since(start)))
	var err error
	if r.leader, err = r.nodeproxy.StartController(); err != nil {
		return err
	}
	if err := install.Until(ctx, patience, func(context.Context) error { return r.terms(1) }); err != nil {
		return err
	}
	if r.standby, err = r.startStandby(); err != nil {
		return err
	}
	if r.reports, err = startReports(ctx, r.cluster, r.failed); err != nil {
		return err
	}
	start = time.Now()
	if err := r.nodeproxy.Enable(ctx); err != nil {
		return err
	}
	if err := install.Until(ctx, 10*time.Minute, r.rendered); err != nil {
		return err
	}
	r.add(measurement{name: "rendering from nothing", value: time.Since(start).Seconds(), unit: "s", goal: 30})
	r.progress("rendered in %s", rounded(time.Since(start)))
	if r.fleet, err = open(ctx, r.cluster, max(1, r.nodes/10), r.failed); err != nil {
		return err
	}
	if err := startLeases(ctx, r.cluster, r.nodes, func() string { return r.fleet.version.Load().(string) }); err != nil {
		return err
	}
	r.fleet.quiet(ctx, 2*time.Second, time.Minute)
	return nil
}

func (r *rig) startStandby() (*cluster.Process, error) {
	return r.nodeproxy.StartController("--metrics-bind-address=0", "--health-probe-bind-address=0")
}

// rendered returns nil once all nodes and all Services within the limits are rendered.
func (r *rig) rendered(ctx context.Context) error {
	if err := install.Running(r.leader); err != nil {
		return err
	}
	var np v1alpha1.NodeProxy
	if err := r.cluster.Client().Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, &np); err != nil {
		return err
	}
	inventory := np.Status.Inventory
	if inventory == nil || int(np.Status.Nodes.Total) < r.nodes || int(inventory.Services) < r.services {
		return fmt.Errorf("%d of %d nodes, inventory %+v", np.Status.Nodes.Total, r.nodes, inventory)
	}
	names := map[string]int{"serviceproxyrules": int(inventory.Services), "nodeproxyrules": r.nodes}
	for resource, want := range names {
		got, err := r.count(ctx, resource)
		if err != nil {
			return err
		}
		if got < want {
			return fmt.Errorf("%d of %d %s", got, want, resource)
		}
	}
	return nil
}

// count returns how many objects of a kind there are, from one of them and the number of the rest.
func (r *rig) count(ctx context.Context, resource string) (int, error) {
	s, err := newStream(r.cluster.RESTConfig(), r.failed)
	if err != nil {
		return 0, err
	}
	return s.count(ctx, rulesPath+resource)
}

// replaced changes an endpoint and waits until the first agent has it, and kube-proxy. It returns
// false if the agent has not got it in time.
func (r *rig) replaced(ctx context.Context, s *service) (arrived bool, err error) {
	next := address(r.world.next + 1)
	now := time.Now()
	agent, peer := r.fleet.first.expect(next, now), r.fleet.peer.expect(next, now)
	if _, err := r.world.replace(ctx, s); err != nil {
		return false, err
	}
	limit := time.After(patience)
	for _, done := range []<-chan struct{}{peer, agent} {
		select {
		case <-done:
		case <-limit:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return true, nil
}

// bytesOfChanges changes one endpoint at a time.
func (r *rig) bytesOfChanges(ctx context.Context) error {
	for _, size := range r.sizes {
		probe := r.world.probe(size)
		row := bytesRow{endpoints: size, goal: goal(size)}
		before := r.fleet.received()
		changes := repeats
		for i := range changes {
			arrived, err := r.replaced(ctx, probe)
			if err != nil {
				return err
			}
			if !arrived {
				row.missing = "not rendered"
				changes = i + 1
				break
			}
			r.fleet.quiet(ctx, silence, patience)
		}
		got := r.fleet.received().since(before)
		row.agent, row.kubeProxy = got.agent/float64(changes), got.kubeProxy/float64(changes)
		agents, _ := r.fleet.first.take()
		peers, _ := r.fleet.peer.take()
		row.delivered, row.kubeProxyDelivered = quantile(agents, .5), quantile(peers, .5)
		r.fleet.first.drop()
		r.bytes = append(r.bytes, row)
		r.progress("%d endpoints: %.0f bytes, kube-proxy %.0f", size, row.agent, row.kubeProxy)
	}
	return nil
}

// sample is what a scenario costs.
type sample struct {
	at                time.Time
	apiServer, leader cluster.Usage
	writes            writes
	received          received
}

func (r *rig) sample(ctx context.Context) (s sample, err error) {
	var errs [3]error
	s.at = time.Now()
	s.apiServer, errs[0] = r.cluster.Program(binaries.APIServer).Usage()
	s.leader, errs[1] = r.leader.Usage()
	s.writes, errs[2] = readWrites(ctx, r.cluster)
	s.received = r.fleet.received()
	return s, errors.Join(errs[:]...)
}

// idle measures what leases and watches cost without changes.
func (r *rig) idle(ctx context.Context) error {
	before, err := r.sample(ctx)
	if err != nil {
		return err
	}
	if err := pass(ctx, churnTime); err != nil {
		return err
	}
	after, err := r.sample(ctx)
	if err != nil {
		return err
	}
	seconds := after.at.Sub(before.at).Seconds()
	r.add(measurement{name: "API server, idle", value: (after.apiServer.CPU - before.apiServer.CPU).Seconds() / seconds, unit: "cores"})
	r.add(measurement{name: "controller, idle", value: (after.leader.CPU - before.leader.CPU).Seconds() / seconds, unit: "cores"})
	r.add(measurement{name: "Lease writes, idle", value: float64(after.writes.since(before.writes).leases) / seconds, unit: "/s"})
	return nil
}

// pass waits, to measure over a time.
func pass(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// churn changes endpoints of Services of 10 endpoints on average.
func (r *rig) churn(ctx context.Context) error {
	before, err := r.sample(ctx)
	if err != nil {
		return err
	}
	changes, err := r.every(ctx, churnPace, int(churnTime/churnPace), func(ctx context.Context, _ int) (string, error) {
		return r.world.replace(ctx, r.world.some(len(r.sizes)))
	})
	if err != nil {
		return err
	}
	r.fleet.quiet(ctx, silence, patience)
	after, err := r.sample(ctx)
	if err != nil {
		return err
	}
	times, missing := r.fleet.first.take()
	if missing > 0 {
		return fmt.Errorf("%d of %d changes were not delivered", missing, changes)
	}
	seconds := after.at.Sub(before.at).Seconds()
	written := after.writes.since(before.writes)
	idle, _ := r.measurement("API server, idle")
	cpu := (after.apiServer.CPU - before.apiServer.CPU).Seconds() - idle*seconds
	r.add(measurement{name: "controller CPU per endpoint change", value: (after.leader.CPU - before.leader.CPU).Seconds() * 1000 / float64(changes), unit: "ms", goal: 3})
	r.add(measurement{name: "API server CPU per write", value: cpu * 1000 / float64(max(1, written.rendered)), unit: "ms", goal: 2, note: "with its deliveries, and the write of the slice"})
	r.add(measurement{name: "writes per endpoint change", value: float64(written.rendered) / float64(changes)})
	r.add(measurement{name: "slice write to delivery, p50", value: quantile(times, .5).Seconds() * 1000, unit: "ms"})
	r.add(measurement{name: "slice write to delivery, p99", value: quantile(times, .99).Seconds() * 1000, unit: "ms"})
	r.add(measurement{name: "requests throttled (429)", value: float64(written.throttled)})
	return nil
}

// every makes n changes at a pace, and waits until the first agent has received all, up to a limit.
// Change returns the address that the agent receives; empty: none.
func (r *rig) every(ctx context.Context, pace time.Duration, n int, change func(context.Context, int) (string, error)) (int, error) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	var last <-chan struct{}
	for i := range n {
		expected := r.fleet.first.expect(address(r.world.next+1), time.Now())
		written, err := change(ctx, i)
		if err != nil {
			return i, err
		}
		if written != "" {
			last = expected
		}
		select {
		case <-ctx.Done():
			return i, ctx.Err()
		case <-tick.C:
		}
	}
	select {
	case <-last:
	case <-time.After(patience):
	case <-ctx.Done():
	}
	return n, ctx.Err()
}

// pods lets pods begin and end: each is added unready, becomes ready, terminates and goes.
func (r *rig) pods(ctx context.Context) error {
	const lives = 40
	before, err := r.sample(ctx)
	if err != nil {
		return err
	}
	for range lives {
		s := r.world.some(len(r.sizes))
		if err := r.world.live(ctx, s, func() error { return pass(ctx, churnPace) }); err != nil {
			return err
		}
	}
	r.fleet.quiet(ctx, 6*time.Second, patience) // agents report up to 5 s later
	after, err := r.sample(ctx)
	if err != nil {
		return err
	}
	r.add(measurement{name: "writes for the life of a pod", value: float64(after.writes.since(before.writes).rendered) / lives, goal: 3.2})
	return nil
}

// rollout replaces all endpoints of a Service, 50 a second.
func (r *rig) rollout(ctx context.Context, size int) error {
	s := r.world.probe(size)
	before := r.fleet.received()
	const perWrite = 5
	_, err := r.every(ctx, 100*time.Millisecond, min(size/perWrite, 300), func(ctx context.Context, i int) (string, error) {
		return r.world.replaceIn(ctx, s, i%len(s.slices), perWrite)
	})
	if err != nil {
		return err
	}
	r.fleet.quiet(ctx, 6*time.Second, patience)
	got := r.fleet.received().since(before)
	times, missing := r.fleet.first.take()
	name := fmt.Sprintf("rollout of %d endpoints", size)
	r.add(measurement{name: name + ": most stale", value: quantile(times, 1).Seconds(), unit: "s", goal: 1, note: fmt.Sprintf("%d intermediate states never sent", missing)})
	r.add(measurement{name: name + ": egress to kube-proxy's", value: got.agent / got.kubeProxy, goal: .1})
	return nil
}

// nodeDown makes the 100 endpoints of a node unready at once.
func (r *rig) nodeDown(ctx context.Context) error {
	before, err := r.sample(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	n, err := r.every(ctx, time.Millisecond, 100, func(ctx context.Context, i int) (string, error) {
		s := r.world.services[len(r.sizes)+i]
		return r.world.replaceIn(ctx, s, 0, 1)
	})
	if err != nil {
		return err
	}
	r.add(measurement{name: "100 pods of a node, to the last delivery", value: time.Since(start).Seconds(), unit: "s"})
	r.fleet.quiet(ctx, silence, patience)
	after, err := r.sample(ctx)
	if err != nil {
		return err
	}
	if _, missing := r.fleet.first.take(); missing > 0 {
		return fmt.Errorf("%d of %d changes were not delivered", missing, n)
	}
	r.add(measurement{name: "API server CPU for it", value: (after.apiServer.CPU - before.apiServer.CPU).Seconds(), unit: "s"})
	return nil
}

// settings changes a setting of all nodes.
func (r *rig) settings(ctx context.Context) error {
	before, err := r.sample(ctx)
	if err != nil {
		return err
	}
	former := r.reports.revision(nodeName(0))
	var np v1alpha1.NodeProxy
	if err := r.cluster.Client().Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, &np); err != nil {
		return err
	}
	np.Spec.Settings.Conntrack.TCPBeLiberal = new(v1alpha1.Enabled)
	np.Spec.Rollout = &v1alpha1.RolloutSettings{MaxUnavailable: new(intstr.FromString("10%"))}
	start := time.Now()
	if err := r.cluster.Client().Update(ctx, &np); err != nil {
		return err
	}
	err = install.Until(ctx, 5*time.Minute, func(context.Context) error {
		if n := r.reports.with(former); n > 0 {
			return fmt.Errorf("%d nodes have the former settings", n)
		}
		return nil
	})
	if err != nil {
		return err
	}
	after, err := r.sample(ctx)
	if err != nil {
		return err
	}
	r.add(measurement{name: "settings on all nodes", value: time.Since(start).Seconds(), unit: "s"})
	r.add(measurement{name: "controller CPU for it", value: (after.leader.CPU - before.leader.CPU).Seconds(), unit: "s"})
	return nil
}

// herd has 200 agents list at once, as after an outage of the API server.
func (r *rig) herd(ctx context.Context) error {
	const agents = 200
	before, err := r.sample(ctx)
	if err != nil {
		return err
	}
	config, err := agentConfig(r.cluster)
	if err != nil {
		return err
	}
	start := time.Now()
	var group sync.WaitGroup
	failed := make([]error, agents)
	sizes := make([]int64, agents)
	for i := range agents {
		group.Go(func() { sizes[i], failed[i] = list(ctx, config) })
	}
	group.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	after, err := r.sample(ctx)
	if err != nil {
		return err
	}
	total := int64(0)
	for _, n := range sizes {
		total += n
	}
	scaled := float64(r.nodes) / agents
	r.add(measurement{name: "all agents list: egress", value: float64(total) * scaled / 1e9, unit: "GB", goal: 6 * float64(r.nodes) / 5000})
	r.add(measurement{name: "all agents list: API server", value: (after.apiServer.CPU - before.apiServer.CPU).Seconds() * scaled, unit: "core-s", goal: 2600 * float64(r.nodes) / 5000})
	r.add(measurement{name: "200 agents list", value: time.Since(start).Seconds(), unit: "s"})
	return nil
}

// failover kills the leader while endpoints change.
func (r *rig) failover(ctx context.Context) error {
	used, err := r.leader.Usage()
	if err != nil {
		return err
	}
	r.add(measurement{name: "controller memory, peak", value: float64(used.Peak) / 1e6, unit: "MB", goal: 350})
	if err := r.leader.Kill(); err != nil {
		return err
	}
	killed := time.Now()
	led := make(chan time.Time, 1)
	go func() {
		// The time is what counts, and changes that are not delivered fail below.
		_ = install.Until(ctx, patience, func(context.Context) error { return r.terms(2) })
		led <- time.Now()
	}()
	var leading time.Time
	n, err := r.every(ctx, 2*churnPace, 60, func(ctx context.Context, _ int) (string, error) {
		if leading.IsZero() {
			select {
			case leading = <-led:
			default:
			}
		}
		return r.world.replace(ctx, r.world.some(len(r.sizes)))
	})
	if err != nil {
		return err
	}
	deliveries, missing := r.fleet.first.take()
	if missing > 0 || leading.IsZero() {
		return fmt.Errorf("%d of %d changes were not delivered, and the standby led: %v", missing, n, !leading.IsZero())
	}
	r.add(measurement{name: "failover until another leads", value: leading.Sub(killed).Seconds(), unit: "s"})
	worst := time.Duration(0)
	for _, d := range deliveries {
		if d.written.Before(leading) {
			worst = max(worst, d.written.Add(d.took).Sub(leading))
		}
	}
	r.add(measurement{name: "changes during it, written after", value: worst.Seconds(), unit: "s", goal: 1})
	r.leader = r.standby
	r.standby, err = r.startStandby()
	return err
}

// terms returns nil once controllers, which share a log, have begun to lead so many times.
func (r *rig) terms(n int) error {
	text, err := os.ReadFile(r.leader.Log())
	if err == nil && strings.Count(string(text), "Became the leader") < n {
		err = errors.New("no leader")
	}
	return err
}

// huge adds a Service of 60,000 endpoints.
func (r *rig) huge(ctx context.Context) error {
	const size = 60_000
	s, err := r.world.add(ctx, "huge", size)
	if err != nil {
		return err
	}
	arrived, err := r.replaced(ctx, s)
	if err != nil {
		return err
	}
	value := 0.0
	if arrived {
		value = size
	}
	r.add(measurement{name: "endpoints of one Service, served", value: value, note: "tried: 60,000"})
	used, err := r.leader.Usage()
	r.add(measurement{name: "controller memory, peak with it", value: float64(cmp.Or(used.Peak, used.Resident)) / 1e6, unit: "MB"})
	return err
}

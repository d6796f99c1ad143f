package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

const (
	// pace is how many new connections are begun in a second, and leastRate how
	// many must have been while the fault lasted.
	pace      = 125
	leastRate = 100
)

// run is a fault under way.
type run struct {
	*testing.T
	*world
	fault    fault
	load     *load.Load
	before   map[string][]string // rules by node
	begun    time.Time           // of the fault
	ended    time.Time           // of the fault; time to repair counts from here
	repaired time.Time
	// listing is how long Kubernetes took to list pods again after the fault: time that
	// nodeproxy cannot use for its repair.
	listing time.Duration
	// outage is for how long there was no API server while endpoints changed.
	outage time.Duration
	// changes counts the last change's so far.
	changes atomic.Int64
	// repairTook is time to repair where the fault itself has seen it.
	repairTook time.Duration
	windows    []window
	// tried and failed count connections besides the load's.
	tried, failed int
	remarks       []string
}

// window is a time in which new connections may fail.
type window struct{ from, to time.Time }

// mayFail lets new connections fail that are begun meanwhile.
func (r *run) mayFail(from, to time.Time) { r.windows = append(r.windows, window{from: from, to: to}) }

// remark adds to the last column of the table.
func (r *run) remark(format string, args ...any) {
	r.remarks = append(r.remarks, fmt.Sprintf(format, args...))
}

// pass lets time pass: that is what most faults need.
func (r *run) pass(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-r.ctx.Done():
		r.Fatal(r.ctx.Err())
	case <-timer.C:
	}
}

// until waits until f returns nil.
func (r *run) until(limit time.Duration, f func(ctx context.Context) error) {
	r.Helper()
	if err := install.Until(r.ctx, limit, f); err != nil {
		r.Fatal(err)
	}
}

// must ends the run on an error.
func (r *run) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// suffer runs a fault under load, waits for repair, and writes a row.
func (w *world) suffer(t *testing.T, f fault, rows *table) {
	targets := w.targets
	if f.stay != nil {
		targets = f.stay(w)
	}
	r := &run{T: t, world: w, fault: f, load: &load.Load{}}
	defer func() { rows.add(r.row(rows)) }()
	defer w.revive(t)
	r.before = w.settle(t)
	started, err := load.Start(r.ctx, pace, targets)
	r.must(err)
	r.load = started
	defer r.judge()
	r.until(20*time.Second, func(context.Context) error { return r.load.WellSince(r.load.Begun()) })
	r.begun = time.Now()
	f.inject(r)
	if r.ended.IsZero() {
		r.ended = time.Now()
	}
	if err := r.repair(); err != nil {
		t.Errorf("full repair: %v", err)
	}
}

// repair waits for full repair: a Service that is made comes to each node and
// goes again, rules are what they were before, each node reports it, and all
// connections succeed.
func (r *run) repair() error {
	ctx, cancel := context.WithDeadline(r.ctx, r.ended.Add(r.fault.repair+r.listing))
	defer cancel()
	if !r.fault.still {
		if err := r.prove(ctx); err != nil {
			return err
		}
	}
	for {
		if err := install.Until(ctx, r.fault.repair, r.restored); err != nil {
			return err
		}
		since := time.Now()
		// Connections may take longer than that: only when they begin counts.
		err := install.Until(r.ctx, 2*load.Patience, func(context.Context) error {
			if r.load.LastFailure().After(since) {
				return install.ErrEnded
			}
			return r.load.WellSince(since)
		})
		switch {
		case err == nil:
			r.repaired = since
			return r.running()
		case !errors.Is(err, install.ErrEnded) || ctx.Err() != nil:
			return fmt.Errorf("connections still fail: %w", err)
		}
	}
}

// restored returns nil when rules are what they were and each node reports it.
func (r *run) restored(ctx context.Context) error {
	if err := r.reported(ctx); err != nil {
		return err
	}
	return r.sameRules(ctx)
}

// sameRules returns nil when each node's rules are what they were.
func (r *run) sameRules(ctx context.Context) error {
	for _, node := range r.cluster.Nodes() {
		now, err := r.saved(ctx, node)
		if err != nil {
			return err
		}
		if d := difference(r.before[node.Name()], now); d != "" {
			return fmt.Errorf("rules of %s before and now: %s", node.Name(), d)
		}
	}
	return nil
}

// prove makes a Service, sees it come to all nodes, and ends it. It has no
// selector, so that nothing depends on how soon others than nodeproxy recover.
func (r *run) prove(ctx context.Context) error {
	r.proofs++
	name := fmt.Sprintf("proof-%d", r.proofs)
	service := &corev1.Service{}
	err := install.Until(ctx, r.fault.repair, func(ctx context.Context) error {
		return r.cluster.Client().Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "web"}, service)
	})
	if err != nil {
		return err
	}
	if _, err := r.makeByHand(name, 8080, [][]string{{r.cluster.Node(1).Pods()[0].IP()}}); err != nil {
		return err
	}
	if err := r.cluster.Client().Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}, service); err != nil {
		return err
	}
	err = install.Until(ctx, r.fault.repair, func(ctx context.Context) error {
		for _, node := range r.cluster.Nodes() {
			if ok, err := r.serves(ctx, node, service); !ok {
				return errors.Join(err, fmt.Errorf("%s does not serve a Service that was made after the fault", node.Name()))
			}
		}
		return nil
	})
	r.deleteByHand(name)
	return err
}

// deleteByHand removes what makeByHand has made.
func (r *run) deleteByHand(name string) {
	r.Helper()
	for _, object := range []client.Object{
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}},
		&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name + "-0"}},
	} {
		r.until(r.fault.repair, func(ctx context.Context) error {
			return client.IgnoreNotFound(r.cluster.Client().Delete(ctx, object))
		})
	}
}

// serves reports whether a node's rules lead to endpoints of a Service.
func (w *world) serves(ctx context.Context, node *cluster.Node, service *corev1.Service) (bool, error) {
	rules, err := w.saved(ctx, node)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(served(rules), func(line string) bool { return strings.HasPrefix(line, service.Spec.ClusterIP+":") }), nil
}

// judge ends the load and fails the test if too much failed or too little was
// tried.
func (r *run) judge() {
	until := r.repaired
	if until.IsZero() {
		until = time.Now()
	}
	r.load.End()
	reported := 0
	for _, f := range r.load.Failures() {
		if r.allowed(f) {
			continue
		}
		if reported++; reported > 10 {
			continue
		}
		r.Errorf("%s after the fault began: %s", f.Begun.Sub(r.begun).Round(time.Millisecond), f)
	}
	if reported > 0 {
		load.Lost(r, "%d connections failed that were not allowed to", reported)
	}
	if r.Failed() {
		r.report()
	}
	if r.begun.IsZero() {
		return
	}
	ended := r.ended
	if ended.IsZero() { // it went wrong before that
		ended = until
	}
	for _, part := range []window{{r.begun, ended}, {r.begun, until}} {
		took := part.to.Sub(part.from).Seconds()
		if rate := float64(r.load.Tried(part.from, part.to)) / took; took >= 1 && rate < leastRate {
			r.Errorf("%.0f new connections a second were tried in %.1f s, want %d at least: this proves too little", rate, took, leastRate)
		}
	}
}

// report prints the last that all processes of nodeproxy have reported.
func (r *run) report() {
	r.Helper()
	for _, p := range r.controllers {
		r.Logf("controller: %s", p.Tail())
	}
	for _, node := range r.cluster.Nodes() {
		r.Logf("agent of %s: %s", node.Name(), r.agents[node.Name()].Tail())
	}
}

// allowed reports whether a connection was allowed to fail.
func (r *run) allowed(f load.Failure) bool {
	return !f.Held && slices.ContainsFunc(r.windows, func(w window) bool { return !f.Begun.Before(w.from) && !f.Begun.After(w.to) })
}

// row is the result.
func (r *run) row(rows *table) row {
	held, _ := r.load.Held()
	out := row{number: rows.number(r.fault.name), title: r.fault.title, allowed: "0", failed: len(r.load.Failures()) + r.failed, held: held,
		tried: r.load.Total() + r.tried, ok: !r.Failed(), remarks: r.remarks}
	if !r.ended.IsZero() {
		out.lasted = r.ended.Sub(r.begun)
	}
	if r.fault.allowed != "" {
		out.allowed = r.fault.allowed
	}
	if !r.repaired.IsZero() {
		out.repaired = r.repaired.Sub(r.ended)
		if r.repairTook > 0 {
			out.repaired = r.repairTook
		}
	}
	return out
}

// deleteService deletes a Service that a fault has made.
func (r *run) deleteService(name string) {
	r.Helper()
	r.must(client.IgnoreNotFound(r.cluster.Client().Delete(r.ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}})))
}

package ipvs

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
)

// Apply programs r. The engine decides how. Draining real servers are checked when it is time.
func (d *Dataplane) Apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	d.watched.pause()
	d.cleanupUntil = time.Time{}
	result, err := d.engine.Apply(ctx, r)
	if err == nil {
		err = d.checkDrains(ctx)
	}
	if err != nil {
		d.actual = nil
		clear(d.schedulers) // the kernel may lack something now
		return dataplane.Result{}, err
	}
	result.Counts, result.Tables = d.counts()
	d.watched.resume(len(d.actual.needs.servers))
	d.engine.Begin()
	return result, nil
}

// operations are what the engine needs of the data plane.
type operations struct{ *Dataplane }

var _ engine.Operations = operations{}

// Open implements engine.Operations.
func (o operations) Open(context.Context) error { return o.kernel.Open() }

// Known implements engine.Operations.
func (o operations) Known() bool { return o.actual != nil }

// Recheck implements engine.Operations.
func (o operations) Recheck(_ context.Context, r *dataplane.Ruleset) (engine.Effect, error) {
	c, err := o.configFor(&r.Node)
	if err != nil {
		return engine.TakesFull, err
	}
	previous := *o.actual.config
	previous.addresses, previous.nodePortIPs = c.addresses, c.nodePortIPs
	if !reflect.DeepEqual(c, &previous) {
		return engine.TakesFull, nil
	}
	o.noteAddresses(c)
	if reflect.DeepEqual(c, o.actual.config) {
		return engine.NoEffect, nil
	}
	o.next = c
	return engine.AllServices, nil
}

// Change implements engine.Operations. After an error the kernel state is unknown, which takes
// a full pass.
func (o operations) Change(ctx context.Context, r *dataplane.Ruleset, names []dataplane.ServiceName, all bool) (int, error) {
	p, err := o.newPartial(r, names, all)
	if err != nil {
		return 0, err
	}
	changed, err := p.run(ctx)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", engine.ErrFull, err)
	}
	return changed, err
}

// Full implements engine.Operations.
func (o operations) Full(ctx context.Context, r *dataplane.Ruleset, _ bool) (engine.FullPass, error) {
	return o.applyFull(ctx, r)
}

// Large implements engine.Operations.
func (o operations) Large(name dataplane.ServiceName, svc *dataplane.Service) bool {
	return isLarge(svc, o.actual.services[name])
}

// Conflicts implements engine.Operations.
func (o operations) Conflicts() iter.Seq2[dataplane.ServiceName, engine.Conflict] {
	return func(yield func(dataplane.ServiceName, engine.Conflict) bool) {
		for name, c := range o.conflicts.of {
			if !yield(name, c.Conflict) {
				return
			}
		}
	}
}

// Report implements engine.Operations, except for the counts.
func (o operations) Report(r *dataplane.Ruleset, result *dataplane.Result) {
	result.Warnings = slices.Clone(o.warnings)
	if len(o.answering) == 0 {
		if w := engine.NodePortWarning(o.family, o.nodePorts, r.Services); w != "" {
			result.Warnings = append(result.Warnings, w)
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(o.notes), dataplane.ServiceName.Compare) {
		for _, note := range o.notes[name] {
			result.Notes = append(result.Notes, fmt.Sprintf("Service %s: %s", name, note))
		}
	}
	result.Failed, result.OwnFlows = len(o.engine.Rejected) > 0, true
}

// largest is the number of virtual servers, real servers or entries of ipsets above which a
// Service is large.
const largest = 500

// isLarge reports whether a Service is or was large; either may be nil.
func isLarge(svc *dataplane.Service, actual *servicePlan) bool {
	servers, reals, entries := 0, 0, 0
	if svc != nil {
		addresses := 1 + len(svc.ExternalIPs) + len(svc.LoadBalancerIPs)
		servers = len(svc.Ports) * addresses
		entries = len(svc.Ports) * len(svc.LoadBalancerIPs) * len(svc.SourceRanges)
		for i := range svc.Ports {
			reals += len(svc.Ports[i].Cluster) * addresses
		}
	}
	if actual != nil {
		servers, entries = max(servers, len(actual.servers)), max(entries, len(actual.entries))
	}
	return max(servers, reals, entries) > largest
}

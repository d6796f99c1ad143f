package iptables

import (
	"context"
	"reflect"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
)

// audited is what is remembered of a comparison beside another proxy, so that
// the next one costs what has changed.
type audited struct {
	want     *desired
	services map[dataplane.ServiceName]*dataplane.Service // that want was planned of
	prune    bool
	kept     int    // Services of Ruleset.Keep
	others   uint32 // kernel.others before the rules were read
	known    bool
	unread   int // comparisons since
	warned   int // comparisons since its warnings were made
	result   dataplane.Difference
}

// warnEvery is how often warnings are made anew, in comparisons: that takes as
// long as reading the rules.
const warnEvery = 10

// audit is Verify beside another proxy.
func (d *Dataplane) audit(ctx context.Context, r *dataplane.Ruleset) (dataplane.Difference, error) {
	if d.audited == nil {
		if err := d.kernel.probe(); err != nil {
			return dataplane.Difference{}, err
		}
	}
	// Whoever maintains the rules, it is not us.
	d.held, d.seen, d.spare = nil, nil, nil
	facts, err := d.facts()
	if err != nil {
		return dataplane.Difference{}, err
	}
	c, err := d.configFor(r, facts)
	if err != nil {
		return dataplane.Difference{}, err
	}
	d.noteAddresses(c)
	next := &audited{prune: r.Prune, kept: len(r.Keep)}
	same := next.plan(d.audited, c, r.Services)
	next.others, next.known = d.kernel.others() // before reading: what comes later is noticed next time
	if last := d.audited; same && next.known && last.known && last.others == next.others && last.prune == r.Prune && last.kept == next.kept && last.unread < maxUnread {
		last.unread++
		last.warn(ctx, d.kernel, last)
		return last.result, nil
	}
	state, err := d.kernel.read(ctx)
	if err != nil {
		return dataplane.Difference{}, err
	}
	d.watchFrom(state)
	found := auditFindings(next.want, state, &scope{prune: r.Prune, kept: engine.KeptOf(r)})
	next.result = dataplane.DifferenceOf(found, dataplane.VerifyOptions{Audit: true})
	next.result.Counts = countsOf(state.ours(next.want))
	next.warn(ctx, d.kernel, d.audited)
	d.audited = next
	return next.result, nil
}

// warn takes the warnings of the last comparison, or makes them where they are
// old.
func (a *audited) warn(ctx context.Context, k kernel, last *audited) {
	if last != nil && last.warned < warnEvery {
		a.warned, a.result.Warnings = last.warned+1, last.result.Warnings
		return
	}
	a.warned, a.result.Warnings = 1, k.warnings(ctx)
}

// watchFrom has the rules watched from what was read.
func (d *Dataplane) watchFrom(state *kernelState) {
	if d.kernel.legacy() {
		d.entries.Store(&entries{total: state.entries()})
	}
	d.engine.Begin()
}

// plan plans the Services, those again that have changed since last. It reports
// whether nothing has.
func (a *audited) plan(last *audited, c *config, services map[dataplane.ServiceName]*dataplane.Service) bool {
	a.want = &desired{config: c, services: make(map[dataplane.ServiceName]*planned, len(services))}
	a.services = make(map[dataplane.ServiceName]*dataplane.Service, len(services))
	keep := last != nil
	if keep {
		former := *last.want.config
		former.terse = c.terse // comments make no difference
		keep = reflect.DeepEqual(&former, c)
	}
	same := keep && len(services) == len(last.services)
	for name, svc := range services {
		a.services[name] = svc
		// A Service is never changed, only replaced.
		if keep && last.services[name] == svc {
			a.want.services[name] = last.want.services[name]
			continue
		}
		same = false
		plan := c.planService(svc)
		a.want.services[name] = plan.planned()
	}
	return same
}

package iptables

import (
	"context"
	"reflect"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
)

// audited remembers a comparison beside another proxy, so that the next one only costs what has
// changed.
type audited struct {
	want     *desired
	services map[dataplane.ServiceName]*dataplane.Service // that want was planned of
	prune    bool
	kept     int // Services of Ruleset.Keep
	since    moment
	unread   int // comparisons since
	warned   int // comparisons since the warnings were updated
	result   dataplane.Difference
}

// warnEvery is the number of comparisons between updates of warnings, which take as
// long as reading the rules.
const warnEvery = 10

// audit is Verify beside another proxy.
func (d *Dataplane) audit(ctx context.Context, r *dataplane.Ruleset) (dataplane.Difference, error) {
	if d.audited == nil {
		if err := d.kernel.probe(); err != nil {
			return dataplane.Difference{}, err
		}
	}
	// Another program may maintain the rules.
	d.held, d.seen, d.spare = nil, moment{}, nil
	c, err := d.config(r)
	if err != nil {
		return dataplane.Difference{}, err
	}
	d.noteAddresses(c)
	next := &audited{prune: r.Prune, kept: len(r.Keep)}
	same := next.plan(d.audited, c, r.Services)
	next.since = momentOf(d.kernel) // before reading: what comes later is noticed next time
	if last := d.audited; same && last.since.sameAs(next.since) && last.prune == r.Prune && last.kept == next.kept && last.unread < maxUnread {
		last.unread++
		last.warn(ctx, d.kernel, last)
		return last.result, nil
	}
	state, err := d.kernel.read(ctx)
	if err != nil {
		return dataplane.Difference{}, err
	}
	if d.kernel.legacy() {
		d.entries.Store(&entries{total: state.entries()})
	}
	d.engine.Begin()
	found := auditFindings(next.want, state, &scope{modes: d.modes, prune: r.Prune, kept: engine.KeptOf(r)})
	next.result = dataplane.DifferenceOf(found, dataplane.VerifyOptions{Audit: true})
	next.result.Counts = state.ours(next.want).counts()
	next.warn(ctx, d.kernel, d.audited)
	d.audited = next
	return next.result, nil
}

// warn copies the warnings of the last comparison, or updates them if they are
// old.
func (a *audited) warn(ctx context.Context, k kernel, last *audited) {
	if last != nil && last.warned < warnEvery {
		a.warned, a.result.Warnings = last.warned+1, last.result.Warnings
		return
	}
	a.warned, a.result.Warnings = 1, k.warnings(ctx)
}

// plan plans the Services that have changed since last. It reports
// whether none has.
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

package nftables

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nft"
)

const (
	// batchElements is how many elements of Services go into one batch, and largeService how many
	// a Service has for which others should not wait.
	batchElements = 20_000
	largeService  = 2_000
	// rejectedBatches and retriedBatches bound the batches with which rejected Services are found.
	rejectedBatches, retriedBatches = 64, 16
	// listTries is how often a table is read that changes meanwhile.
	listTries = 5
)

// operations are what the engine has the data plane do.
type operations struct{ *Dataplane }

var _ engine.Operations = operations{}

// Open implements engine.Operations.
func (o operations) Open(context.Context) error { return o.connect() }

// Known implements engine.Operations.
func (o operations) Known() bool { return o.actual != nil }

// Recheck implements engine.Operations.
func (o operations) Recheck(_ context.Context, r *dataplane.Ruleset) (engine.Effect, error) {
	c, err := o.configFor(&r.Node)
	if err != nil {
		return engine.TakesFull, err
	}
	if reflect.DeepEqual(c, o.config) {
		return engine.NoEffect, nil
	}
	same := *c
	if same.nodePortIPs = o.config.nodePortIPs; !reflect.DeepEqual(&same, o.config) {
		return engine.TakesFull, nil
	}
	o.next = c
	return engine.AllServices, nil
}

// Change implements engine.Operations.
func (o operations) Change(_ context.Context, r *dataplane.Ruleset, names []dataplane.ServiceName, all bool) (int, error) {
	c := o.config
	if all && o.next != nil {
		c, o.next = o.next, nil
	}
	o.services = r.Services
	plans := o.contest.plans(c, names, func(name dataplane.ServiceName) *dataplane.Service { return r.Services[name] },
		func(k key) dataplane.ServiceName { return o.actual.destinations[k].service },
		func(name dataplane.ServiceName) *servicePlan { return o.actual.services[name] })
	changed, err := o.write(plans, o.engine.Rejected, func(batch []dataplane.ServiceName) error {
		u, b := c.newUpdate(o.actual), &nft.Batch{}
		for _, name := range batch {
			u.set(name, plans[name])
		}
		u.batch(b)
		if err := o.kernel.Commit(b, 0); err != nil {
			return err
		}
		u.done()
		return o.forgetClients(u)
	})
	if err != nil {
		return 0, fmt.Errorf("%w: %w", engine.ErrFull, err)
	}
	o.config = c
	return changed, nil
}

// write writes plans by batches, and notes which Services the kernel rejects, of which previous were
// rejected before. It returns how many were written.
func (o operations) write(plans map[dataplane.ServiceName]*servicePlan, previous map[dataplane.ServiceName]engine.Rejection[servicePlan], write func([]dataplane.ServiceName) error) (int, error) {
	iso := engine.Isolation[servicePlan]{
		Limit: rejectedBatches, RetryLimit: retriedBatches, Capacity: batchElements, LargeSize: largeService,
		Size: func(name dataplane.ServiceName) int { return plans[name].size() },
		Rejection: func(err error) bool {
			rejected, ok := errors.AsType[*nft.RejectedError](err)
			return ok && rejected.Message >= 0
		},
		Suspects: func([]dataplane.ServiceName, error) (suspects, rest []dataplane.ServiceName) { return nil, nil },
		Previous: previous, Rejected: map[dataplane.ServiceName]engine.Rejection[servicePlan]{}, Changed: map[dataplane.ServiceName]struct{}{},
	}
	err := iso.Write(slices.SortedFunc(maps.Keys(plans), dataplane.ServiceName.Compare), write)
	if err != nil {
		return 0, err
	}
	rejected := maps.Clone(previous)
	for name := range plans {
		delete(rejected, name)
	}
	maps.Copy(rejected, iso.Rejected)
	o.engine.Rejected = rejected
	return len(iso.Changed), engine.NoneTaken(len(plans), iso.Rejected)
}

// size is about how many elements a plan has; a nil plan has none.
func (p *servicePlan) size() int {
	if p == nil {
		return 0
	}
	n := 1 + len(p.hairpin)
	for i := range p.destinations {
		d := &p.destinations[i]
		n += 3 + len(d.endpoints) + len(d.local) + len(d.ranges)
	}
	return n
}

// forgetClients lets clients that keep an endpoint which is gone get another one.
func (o operations) forgetClients(u *update) error {
	if len(u.released) == 0 {
		return nil
	}
	gone := map[string]struct{}{}
	for k, endpoints := range u.released {
		for _, e := range endpoints {
			gone[string(k.bytes())+string(endpointData(e))] = struct{}{}
		}
	}
	for range listTries {
		var b nft.Batch
		client := int(u.header().length)
		err := o.kernel.Elements(u.table(), setAffinity, func(e *nft.Element) {
			if _, found := gone[string(e.Key[client:])+string(e.Data)]; found {
				b.DeleteElement(u.table(), setAffinity, &nft.Element{Key: slices.Clone(e.Key)})
			}
		})
		if err == nil {
			err = o.kernel.Commit(&b, 0)
		}
		// An element may have expired meanwhile.
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, nft.ErrInterrupted) {
			return err
		}
	}
	return nil
}

// list reads the table.
func (d *Dataplane) list(c *config) (*listing, error) {
	var last error
	for range listTries {
		l, err := c.list(d.kernel)
		if !errors.Is(err, nft.ErrInterrupted) {
			return l, err
		}
		last = err
	}
	return nil, last
}

// Full implements engine.Operations.
func (o operations) Full(_ context.Context, r *dataplane.Ruleset, asked bool) (engine.FullPass, error) {
	c, err := o.configFor(&r.Node)
	if err != nil {
		return engine.FullPass{}, err
	}
	o.services = r.Services
	was := o.actual
	o.actual, o.contest = nil, newContest()
	l, err := o.list(c)
	if err != nil {
		return engine.FullPass{}, err
	}
	plans := o.contest.plans(c, namesOf(r), func(name dataplane.ServiceName) *dataplane.Service { return r.Services[name] },
		func(key) dataplane.ServiceName { return dataplane.ServiceName{} }, func(dataplane.ServiceName) *servicePlan { return nil })
	resting := o.engine.Resting(r)
	for name := range resting {
		delete(plans, name)
	}
	difference := c.compare(l, plans)
	if difference.rebuild {
		if err := o.rebuild(c, l); err != nil {
			return engine.FullPass{}, err
		}
		difference = c.compare(&listing{}, plans)
	}
	c.retain(difference, keys(resting))
	if !r.Prune {
		c.retain(difference, difference.former.unknown(r))
		delete(difference.stale.deleted, setClusterIPs)
		delete(difference.stale.deleted, setHairpin)
	}
	o.engine.Preserved = engine.PreservedOf(r)
	c.preserve(l, difference, o.engine.Preserved)
	changed, err := o.writeDifference(c, l, difference)
	if err != nil {
		return engine.FullPass{}, err
	}
	maps.Copy(o.engine.Rejected, resting)
	o.actual, o.config, o.next = difference.desired, c, nil
	out := engine.FullPass{Changed: changed}
	if was != nil && !asked && !difference.equal() {
		out.Repaired = dataplane.DifferenceOf(c.findings(difference), dataplane.VerifyOptions{})
	}
	return out, nil
}

// rebuild deletes a table whose sets are not as they should be.
func (o operations) rebuild(c *config, l *listing) error {
	var b nft.Batch
	b.DeleteTable(c.table())
	if err := o.kernel.Commit(&b, l.generation); err != nil {
		return fmt.Errorf("delete table %s, which another program has made: %w", TableName, err)
	}
	l.elements = nil
	return nil
}

// writeDifference writes what a comparison has found, and returns how many Services it has changed.
// Base chains of a new table come last, so that no packet meets a part of it.
func (o operations) writeDifference(c *config, l *listing, d *comparison) (int, error) {
	t := c.table()
	first, hooks := *d, *d
	first.chains, hooks.sets, hooks.chains = nil, nil, nil
	for _, chain := range d.chains {
		if _, exists := l.chains[chain.name]; chain.hook != nil && !exists {
			hooks.chains = append(hooks.chains, chain)
		} else {
			first.chains = append(first.chains, chain)
		}
	}
	if len(first.sets)+len(first.chains) > 0 || !l.exists {
		var b nft.Batch
		first.layout(&b, t)
		if err := o.kernel.Commit(&b, 0); err != nil {
			return 0, fmt.Errorf("write the layout of table %s: %w", TableName, err)
		}
	}
	sets := c.setNames(d.desired.timeouts)
	plans := map[dataplane.ServiceName]*servicePlan{}
	for name := range d.services {
		plans[name] = d.desired.services[name]
	}
	changed, err := o.write(plans, map[dataplane.ServiceName]engine.Rejection[servicePlan]{}, func(batch []dataplane.ServiceName) error {
		var b nft.Batch
		all := newChange()
		for _, name := range batch {
			all.join(d.services[name])
		}
		all.appendTo(&b, t, sets)
		return o.kernel.Commit(&b, 0)
	})
	if err != nil {
		return 0, err
	}
	c.retain(d, keys(o.engine.Rejected))
	var b nft.Batch
	d.stale.appendTo(&b, t, sets)
	if len(hooks.chains) > 0 {
		hooks.layout(&b, t)
	}
	if err := o.kernel.Commit(&b, 0); err != nil {
		return 0, fmt.Errorf("write table %s: %w", TableName, err)
	}
	return changed, nil
}

// preserve leaves destinations of some Services as they are, where the table has them.
func (c *config) preserve(l *listing, d *comparison, services map[dataplane.ServiceName]struct{}) {
	if len(services) == 0 {
		return
	}
	exists := func(e nft.Element) (owner dataplane.ServiceName, found bool) {
		k, err := c.parseKey(e.Key)
		if err != nil {
			return dataplane.ServiceName{}, false
		}
		_, found = l.elements[setServices][string(k.bytes())]
		return d.desired.destinations[k].service, found
	}
	for name := range services {
		change := d.services[name]
		if change == nil {
			continue
		}
		change.deleted = map[string][]nft.Element{}
		for set, elements := range change.added {
			change.added[set] = slices.DeleteFunc(elements, func(e nft.Element) bool { _, found := exists(e); return found })
		}
		if change.size() == 0 {
			delete(d.services, name)
		}
	}
	for set, elements := range d.stale.deleted {
		d.stale.deleted[set] = slices.DeleteFunc(elements, func(e nft.Element) bool {
			owner, _ := exists(e)
			_, preserved := services[owner]
			return preserved
		})
	}
}

// retain leaves what the table has of some Services.
func (c *config) retain(d *comparison, names map[dataplane.ServiceName]struct{}) {
	for name := range names {
		d.desired.demote(name, d.former)
	}
	for set, elements := range d.stale.deleted {
		d.stale.deleted[set] = slices.DeleteFunc(elements, func(e nft.Element) bool {
			k, err := c.parseKey(e.Key)
			if err != nil {
				return false
			}
			_, retained := names[d.desired.destinations[k].service]
			return retained
		})
	}
}

// unknown are the Services of a state that are neither desired nor have ended.
func (s *state) unknown(r *dataplane.Ruleset) map[dataplane.ServiceName]struct{} {
	out := map[dataplane.ServiceName]struct{}{}
	for _, o := range s.destinations {
		if _, dirty := r.Dirty[o.service]; !dirty && r.Services[o.service] == nil {
			out[o.service] = struct{}{}
		}
	}
	return out
}

func keys[V any](of map[dataplane.ServiceName]V) map[dataplane.ServiceName]struct{} {
	out := make(map[dataplane.ServiceName]struct{}, len(of))
	for name := range of {
		out[name] = struct{}{}
	}
	return out
}

// join adds another change.
func (c *change) join(o *change) {
	for set, elements := range o.deleted {
		c.deleted[set] = append(c.deleted[set], elements...)
	}
	for set, elements := range o.added {
		c.added[set] = append(c.added[set], elements...)
	}
}

func namesOf(r *dataplane.Ruleset) []dataplane.ServiceName {
	return slices.SortedFunc(maps.Keys(r.Services), dataplane.ServiceName.Compare)
}

// Large implements engine.Operations.
func (o operations) Large(name dataplane.ServiceName, svc *dataplane.Service) bool {
	size := o.actual.services[name].size()
	if svc != nil {
		plan := o.config.planService(svc)
		size = max(size, plan.size())
	}
	return size > largeService
}

// Conflicts implements engine.Operations.
func (o operations) Conflicts() iter.Seq2[dataplane.ServiceName, engine.Conflict] {
	return func(yield func(dataplane.ServiceName, engine.Conflict) bool) {
		for name := range o.contest.lost {
			if !yield(name, engine.Conflict{Reason: o.contest.reason(name), Served: o.services[name]}) {
				return
			}
		}
	}
}

// Report implements engine.Operations.
func (o operations) Report(_ *dataplane.Ruleset, result *dataplane.Result) {
	result.Failed = len(o.engine.Rejected) > 0
	result.Counts = o.actual.counts()
}

// counts are those of the table.
func (s *state) counts() dataplane.Counts {
	n := len(s.clusterIPs) + len(s.hairpin)
	for _, o := range s.destinations {
		n += 1 + len(o.endpoints) + len(o.local) + len(merged(o.ranges))
		if o.circuit != (chain{}) {
			n++
		}
		if o.affinity != 0 {
			n++
		}
	}
	return dataplane.Counts{dataplane.Chains: len(s.chains), dataplane.SetEntries: n}
}

func countsOf(l *listing) dataplane.Counts {
	n := 0
	for _, elements := range l.elements {
		n += len(elements)
	}
	return dataplane.Counts{dataplane.Chains: len(l.chains), dataplane.SetEntries: n}
}

// findings describes a comparison, human-readable.
func (c *config) findings(d *comparison) []dataplane.Finding {
	var out []dataplane.Finding
	add := func(name dataplane.ServiceName, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		out = append(out, dataplane.Finding{Service: name, Key: text, Text: text})
	}
	if d.rebuild {
		add(dataplane.ServiceName{}, "table %s has sets or hooks of another layout", TableName)
	}
	for _, s := range d.sets {
		add(dataplane.ServiceName{}, "missing set %s of table %s", s.Name, TableName)
	}
	for _, chain := range d.chains {
		add(dataplane.ServiceName{}, "chain %s of table %s is missing or has other rules", chain.name, TableName)
	}
	for _, name := range slices.SortedFunc(maps.Keys(d.services), dataplane.ServiceName.Compare) {
		for _, set := range slices.Sorted(maps.Keys(d.services[name].added)) {
			add(name, "Service %s: missing or different: %s of %s", name, count(len(d.services[name].added[set]), "element"), set)
		}
	}
	for _, set := range slices.Sorted(maps.Keys(d.stale.deleted)) {
		add(dataplane.ServiceName{}, "unexpected: %s of %s", count(len(d.stale.deleted[set]), "element"), set)
	}
	for _, set := range slices.Sorted(maps.Keys(d.stale.added)) {
		add(dataplane.ServiceName{}, "missing: %s of %s", count(len(d.stale.added[set]), "element"), set)
	}
	return out
}

// count counts something, as in "1 element" or "2 elements".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

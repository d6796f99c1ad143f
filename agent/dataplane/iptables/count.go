package iptables

import (
	"context"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// write gives a transaction to the kernel and counts the rules that it takes.
func (d *Dataplane) write(ctx context.Context, t *transaction) error {
	if err := d.kernel.apply(ctx, t.String()); err != nil {
		d.failed = true
		return err
	}
	for in, n := range t.written {
		d.written[in] += n
	}
	return nil
}

// insert gives a jump to the kernel and counts it.
func (d *Dataplane) insert(h hook) error {
	if err := d.kernel.insert(h); err != nil {
		d.failed = true
		return err
	}
	d.written[h.in.table]++
	return nil
}

// count puts into a result how many rules there are and were written.
func (d *Dataplane) count(result *dataplane.Result) {
	result.Counts, result.Failed = d.counts(), d.failed
	result.Tables = map[string]dataplane.TableCount{
		filter.String(): {Rules: d.filterRules, Written: d.written[filter]},
		nat.String():    {Rules: d.rules - d.filterRules, Written: d.written[nat]},
	}
}

// inFilter is how many of the rules in counts are in the table filter.
func (w *desired) inFilter() int {
	n := 0
	for _, s := range w.config.sharedChains() {
		if s.id.table == filter {
			n += len(s.fixed)
		}
	}
	for _, h := range w.config.hooks() {
		if h.in.table == filter {
			n++
		}
	}
	for _, p := range w.services {
		n += p.inFilter()
	}
	return n
}

// inFilter is how many rules of a Service are in the table filter, where it has
// no chains of its own.
func (p *planned) inFilter() int {
	n := 0
	if p != nil {
		for i := range p.dispatch {
			if p.dispatch[i].in.table == filter {
				n++
			}
		}
	}
	return n
}

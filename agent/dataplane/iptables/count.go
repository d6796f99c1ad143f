package iptables

import (
	"context"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// tally counts chains and rules.
type tally struct {
	chains, rules int
	filter        int // those of rules in the table filter
}

// entries are how many entries of the legacy variant's tables these are.
func (t tally) entries() int { return t.rules + 2*t.chains }

func (t tally) counts() dataplane.Counts {
	return dataplane.Counts{dataplane.Chains: t.chains, dataplane.Rules: t.rules}
}

func (t tally) plus(o tally) tally {
	return tally{chains: t.chains + o.chains, rules: t.rules + o.rules, filter: t.filter + o.filter}
}

func (t tally) minus(o tally) tally {
	return tally{chains: t.chains - o.chains, rules: t.rules - o.rules, filter: t.filter - o.filter}
}

func (t *tally) add(in table, rules int) {
	t.rules += rules
	if in == filter {
		t.filter += rules
	}
}

// tally counts what is desired, jumps included.
func (w *desired) tally() tally {
	var t tally
	for _, s := range w.config.sharedChains() {
		t.chains++
		t.add(s.id.table, len(s.fixed))
	}
	for _, j := range w.config.jumps() {
		t.add(j.Table, 1)
	}
	for _, p := range w.services {
		t = t.plus(p.tally())
	}
	return t
}

func (p *planned) tally() tally {
	var t tally
	if p == nil {
		return t
	}
	t.chains = len(p.chains)
	for i := range p.dispatch {
		t.add(p.dispatch[i].in.table, 1)
	}
	for _, c := range p.chains {
		t.rules += c.rules
	}
	return t
}

// write gives a transaction to the kernel and counts the rules that it takes.
func (d *Dataplane) write(ctx context.Context, t *transaction) error {
	input := t.String()
	if err := d.kernel.apply(ctx, input); err != nil {
		d.failed = true
		return err
	}
	in := filter
	for line := range strings.Lines(input) {
		switch {
		case line[0] == '*':
			in = strings.TrimSpace(line[1:])
		case strings.HasPrefix(line, "-A "), strings.HasPrefix(line, "-I "):
			d.written[in]++
		}
	}
	return nil
}

// insert gives a jump to the kernel and counts it.
func (d *Dataplane) insert(j Jump) error {
	if err := d.kernel.insert(j); err != nil {
		d.failed = true
		return err
	}
	d.written[j.Table]++
	return nil
}

// count adds to a result how many rules there are and were written.
func (d *Dataplane) count(result *dataplane.Result) {
	result.Counts, result.Failed = d.tally.counts(), d.failed
	result.Tables = map[string]dataplane.TableCount{
		filter: {Rules: d.tally.filter, Written: d.written[filter]},
		nat:    {Rules: d.tally.rules - d.tally.filter, Written: d.written[nat]},
	}
}

// entries are how many the tables nat and filter of the legacy variant should
// have together; see kernelState.entries.
type entries struct {
	total int
	ours  int
}

// expected are the entries by what is ours and by how many others have.
func (d *Dataplane) expected() *entries {
	ours := d.tally.entries()
	return &entries{total: ours + d.unmanaged, ours: ours}
}

// expectEntries expects the tables to stay as they were read, without any difference.
func (d *Dataplane) expectEntries(state *kernelState) {
	if d.held == nil || !d.kernel.legacy() {
		return
	}
	d.unmanaged = state.entries() - d.tally.entries()
	d.entries.Store(d.expected())
}

// countUnmanaged counts the entries of others after a full pass: in what it has
// read, so that what others change while it writes is noticed.
func (d *Dataplane) countUnmanaged(p *fullPass) {
	if !d.kernel.legacy() {
		return
	}
	d.unmanaged = p.state.entries() - p.state.ours(p.want).entries()
	if len(d.engine.Rejected)+len(d.stuck)+len(p.scope.kept) == 0 {
		return
	}
	// The kernel has more of ours than is counted.
	if now, known := d.kernel.entries(); known {
		d.unmanaged = now - d.tally.entries()
	}
}

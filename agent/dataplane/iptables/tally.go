package iptables

import (
	"context"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// tally is a kernel that counts what is written.
type tally struct {
	kernel
	written [2]int // rules, by table
	failed  bool   // some of it was not taken
}

func (t *tally) apply(ctx context.Context, input string) error {
	err := t.kernel.apply(ctx, input)
	if err != nil {
		t.failed = true
		return err
	}
	in := nat
	for line := range strings.Lines(input) {
		switch {
		case strings.HasPrefix(line, "-A ") || strings.HasPrefix(line, "-I "):
			t.written[in]++
		case line == "*filter\n":
			in = filter
		case line == "*nat\n":
			in = nat
		}
	}
	return nil
}

func (t *tally) insert(h hook) error {
	err := t.kernel.insert(h)
	if err != nil {
		t.failed = true
		return err
	}
	t.written[h.in.table]++
	return nil
}

// beginTally forgets what was written before.
func (d *Dataplane) beginTally() {
	if t, ok := d.kernel.(*tally); ok {
		t.written, t.failed = [2]int{}, false
	}
}

// tellTally puts what was written into a result.
func (d *Dataplane) tellTally(result *dataplane.Result) {
	result.Tables = map[string]dataplane.TableCount{
		filter.String(): {Rules: d.filterRules}, nat.String(): {Rules: d.rules - d.filterRules},
	}
	t, ok := d.kernel.(*tally)
	if !ok {
		return
	}
	result.Failed = t.failed
	for _, in := range []table{filter, nat} {
		count := result.Tables[in.String()]
		count.Written = t.written[in]
		result.Tables[in.String()] = count
	}
}

// inFilter is how many of the rules in counts are in the table filter.
func (w *wanted) inFilter() int {
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

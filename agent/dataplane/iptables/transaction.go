package iptables

import (
	"errors"
	"slices"
	"strings"
)

// transaction collects the input of one iptables-restore. Each of its sections is
// atomic in the kernel. Filter rules only meet packets that nat did not
// translate, so rules that reject are added before the translation that they replace is removed,
// and removed after the translation that replaces them is added: no packet falls between.
type transaction struct {
	reject  text // filter: what is added
	declare text // nat: chains that are created or emptied
	nat     text // nat: rules
	drop    text // nat: chains that are deleted
	permit  text // filter: what is removed
	lines   int
	effect  effect
	sweep   *sweep   // nil: none; see fill
	later   []*chain // whose texts fill adds
	// large: see listAll. Amid: it begins amid a chain.
	large, amid bool
}

// text is what a section of a transaction consists of. It copies nothing: a large Service has many
// transactions, and only the text of the one that is being written takes memory of its own.
type text struct {
	parts []string
	size  int
}

func (t *text) add(parts ...string) {
	t.parts = append(t.parts, parts...)
	for _, p := range parts {
		t.size += len(p)
	}
}

// lines counts them.
func (t *text) lines() int {
	n := 0
	for _, p := range t.parts {
		n += strings.Count(p, "\n")
	}
	return n
}

// listAll makes a call that carries much of table nat cheaper in the nf_tables variant: any
// command about a whole table makes iptables-restore fetch all chains at once. Otherwise it asks
// the kernel for each chain of its input, one by one, and looks for each in a list
// of them, so that its time grows with the square of what it carries. Listing costs too: the table
// must have less than what is written.
const listAll = "-S\n"

func (t *transaction) empty() bool { return t.lines == 0 }

func (t *transaction) line(b *text, parts ...string) {
	b.add(parts...)
	b.add("\n")
	t.lines++
}

func (t *transaction) writeChain(c *chain) {
	t.lines += 1 + c.rules
	if c.later != nil {
		t.later = append(t.later, c)
	} else {
		t.chainText(c, c.text)
	}
	t.effect.chains = append(t.effect.chains, plannedChain{name: c.name, hash: c.hash, rules: c.rules})
}

func (t *transaction) chainText(c *chain, text string) {
	t.declare.add(emptied(c.name), "\n")
	t.nat.add(text)
}

func (t *transaction) insertRule(in chainID, spec string) {
	t.line(t.rules(in.table), "-I ", in.name, " ", spec)
}

// dropChain deletes a chain of a Service that is empty and that nothing jumps to any more.
func (t *transaction) dropChain(name string) {
	t.line(&t.drop, "-X ", name)
	t.effect.dropped = append(t.effect.dropped, name)
}

func (t *transaction) emptyChain(name string) { t.writeChain(&chain{name: name}) }

// addRule puts a rule of a Service at the head of a shared chain.
func (t *transaction) addRule(r dispatchRule) {
	t.insertRule(r.in, r.spec)
	t.effect.added = append(t.effect.added, r)
}

func (t *transaction) takeRule(r dispatchRule) {
	t.removeRule(r.in, r.spec)
	t.effect.removed = append(t.effect.removed, r)
}

func (t *transaction) hasNAT() bool { return t.declare.size+t.nat.size+t.drop.size > 0 }

// undo removes the rules of Services that the transaction adds to filter. The last one is
// first in its chain, where the programs find it at once.
func (t *transaction) undo() *transaction {
	out := &transaction{}
	for _, r := range slices.Backward(t.effect.added) {
		if r.in.table == filter {
			out.removeRule(r.in, r.spec)
		}
	}
	return out
}

// onlyPermitFailed reports whether the kernel, which has rejected the transaction, may have
// taken all of it but the last section.
func (t *transaction) onlyPermitFailed(err error) bool {
	if t.permit.size == 0 || !t.hasNAT() && t.reject.size == 0 {
		return false
	}
	failure, ok := errors.AsType[*toolError](err)
	if !ok || len(failure.faults) == 0 {
		return true
	}
	const around = 2 // the lines before and after a section's rules
	before := strings.Count(t.String(), "\n") - t.permit.lines() - around
	return slices.Min(failure.faults) > before
}

func (t *transaction) removeRule(in chainID, spec string) {
	b := &t.nat
	if in.table == filter {
		b = &t.permit
	}
	t.line(b, "-D ", in.name, " ", spec)
}

// writeShared brings a shared chain up to date: rule by rule, or as a whole where that is less
// work. In filter what is added comes before nat changes and what is removed after that, so
// only the second step may write the chain as a whole.
func (t *transaction) writeShared(d *sharedDiff) {
	c := d.chain
	if !c.dispatch && !c.mixed || d.missing || c.id.table == nat && d.mostlyNew() {
		t.declareShared(c.id)
		t.fillShared(t.rules(c.id.table), d)
		return
	}
	for _, r := range d.add {
		t.addRule(r.dispatchRule)
	}
	if len(d.add) > 0 {
		t.putFirst(c.id, d.head)
	}
	if len(d.remove) > maxSingly { // in filter
		t.line(&t.permit, emptied(c.id.name))
		t.fillShared(&t.permit, d)
		return
	}
	for _, spec := range d.remove {
		t.removeRule(c.id, spec)
	}
	if d.fixed {
		t.appendRules(c.id, c.fixed)
	}
}

func emptied(name string) string { return ":" + name + " - [0:0]" }

func (t *transaction) putFirst(in chainID, specs []string) {
	for _, spec := range slices.Backward(specs) {
		t.removeRule(in, spec)
		t.insertRule(in, spec)
	}
}

func (t *transaction) appendRules(in chainID, specs []string) {
	t.appendTo(t.rules(in.table), in, specs)
}

func (t *transaction) appendTo(b *text, in chainID, specs []string) {
	const each = 5
	b.parts = slices.Grow(b.parts, each*len(specs))
	for _, spec := range specs {
		t.line(b, "-A ", in.name, " ", spec)
	}
}

// mostlyNew reports whether more of a chain changes than stays, or too much is removed for
// doing so rule by rule.
func (d *sharedDiff) mostlyNew() bool {
	changes := len(d.add) + len(d.remove)
	return changes > 16 && changes > len(d.stay) || len(d.remove) > maxSingly
}

func (t *transaction) declareShared(id chainID) {
	declare := &t.declare
	if id.table == filter {
		declare = &t.reject
	}
	t.line(declare, emptied(id.name))
}

// fillShared writes all rules of a shared chain that is empty.
func (t *transaction) fillShared(b *text, d *sharedDiff) {
	id := d.chain.id
	t.appendTo(b, id, d.head)
	for _, r := range d.add { // before those of others, which may match what is for Services
		t.appendTo(b, id, []string{r.spec})
	}
	t.appendTo(b, id, d.stay)
	t.appendTo(b, id, d.chain.fixed)
}

func (t *transaction) rules(in table) *text {
	if in == filter {
		return &t.reject
	}
	return &t.nat
}

func (t *transaction) String() string {
	var out strings.Builder
	const around = 64 // the lines around sections, three at most
	out.Grow(t.reject.size + t.declare.size + t.nat.size + t.drop.size + t.permit.size + 3*around)
	section := func(name table, texts ...*text) {
		size := 0
		for _, b := range texts {
			size += b.size
		}
		if size == 0 {
			return
		}
		out.WriteString("*" + name + "\n")
		if t.large && name == nat {
			out.WriteString(listAll)
		}
		for _, b := range texts {
			for _, p := range b.parts {
				out.WriteString(p)
			}
		}
		out.WriteString("COMMIT\n")
	}
	section(filter, &t.reject)
	section(nat, &t.declare, &t.nat, &t.drop)
	section(filter, &t.permit)
	return out.String()
}

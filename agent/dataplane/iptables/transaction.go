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
	refuse  strings.Builder // filter: what is added
	declare strings.Builder // nat: chains that are created or emptied
	nat     strings.Builder // nat: rules
	drop    strings.Builder // nat: chains that are deleted
	permit  strings.Builder // filter: what is removed
	lines   int
	effect  effect
	sweep   *sweep // nil: none; see fill
	// large: see listAll.
	large bool
}

// listAll makes a call that carries much of table nat cheaper in the nf_tables variant: any
// command about a whole table makes iptables-restore fetch all chains at once. Otherwise it asks
// the kernel for each chain of its input, one by one, and looks for each in a list
// of them, so that its time grows with the square of what it carries. Listing costs too: the table
// must have less than what is written.
const listAll = "-S\n"

func (t *transaction) empty() bool { return t.lines == 0 }

func (t *transaction) line(b *strings.Builder, parts ...string) {
	for _, p := range parts {
		b.WriteString(p)
	}
	b.WriteByte('\n')
	t.lines++
}

func (t *transaction) writeChain(c *chain) {
	t.line(&t.declare, emptied(c.name))
	t.nat.WriteString(c.text)
	t.lines += c.rules
	t.effect.chains = append(t.effect.chains, plannedChain{name: c.name, hash: c.hash, rules: c.rules})
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

func (t *transaction) hasNAT() bool { return t.declare.Len()+t.nat.Len()+t.drop.Len() > 0 }

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
	if t.permit.Len() == 0 || !t.hasNAT() && t.refuse.Len() == 0 {
		return false
	}
	failure, ok := errors.AsType[*toolError](err)
	if !ok || len(failure.faults) == 0 {
		return true
	}
	const around = 2 // the lines before and after a section's rules
	before := strings.Count(t.String(), "\n") - strings.Count(t.permit.String(), "\n") - around
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
	if !c.dispatch && !c.foreign || d.missing || c.id.table == nat && d.mostlyNew() {
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

func (t *transaction) appendTo(b *strings.Builder, in chainID, specs []string) {
	for _, spec := range specs {
		t.line(b, "-A ", in.name, " ", spec)
	}
}

// mostlyNew reports whether more of a chain changes than stays, or too much is removed for
// doing so rule by rule.
func (d *sharedDiff) mostlyNew() bool {
	changes := len(d.add) + len(d.remove)
	return changes > 16 && changes > len(d.keep) || len(d.remove) > maxSingly
}

func (t *transaction) declareShared(id chainID) {
	declare := &t.declare
	if id.table == filter {
		declare = &t.refuse
	}
	t.line(declare, emptied(id.name))
}

// fillShared writes all rules of a shared chain that is empty.
func (t *transaction) fillShared(b *strings.Builder, d *sharedDiff) {
	id := d.chain.id
	t.appendTo(b, id, d.head)
	for _, r := range d.add { // before those of others, which may match what is for Services
		t.appendTo(b, id, []string{r.spec})
	}
	t.appendTo(b, id, d.keep)
	t.appendTo(b, id, d.chain.fixed)
}

func (t *transaction) rules(in table) *strings.Builder {
	if in == filter {
		return &t.refuse
	}
	return &t.nat
}

func (t *transaction) String() string {
	var out strings.Builder
	section := func(name table, parts ...*strings.Builder) {
		size := 0
		for _, p := range parts {
			size += p.Len()
		}
		if size == 0 {
			return
		}
		out.WriteString("*" + name + "\n")
		if t.large && name == nat {
			out.WriteString(listAll)
		}
		for _, p := range parts {
			out.WriteString(p.String())
		}
		out.WriteString("COMMIT\n")
	}
	section(filter, &t.refuse)
	section(nat, &t.declare, &t.nat, &t.drop)
	section(filter, &t.permit)
	return out.String()
}

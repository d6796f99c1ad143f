package iptables

// entries are how many the tables nat and filter of the legacy variant should
// hold together; see kernelState.entries.
type entries struct {
	total int
	ours  int // what of them belongs to our rules and chains
}

// expected are the entries of the tables by what is held and by how many others
// have.
func (d *Dataplane) expected() *entries {
	ours := entriesOf(d.chains, d.rules)
	return &entries{total: ours + d.foreign, ours: ours}
}

func entriesOf(chains, rules int) int { return rules + 2*chains }

// expectEntries takes the state of the kernel, in which nothing differs, for what
// its tables should hold.
func (d *Dataplane) expectEntries(state *kernelState) {
	if d.held == nil || !d.kernel.legacy() {
		return
	}
	d.foreign = state.entries() - entriesOf(d.chains, d.rules)
	d.entries.Store(d.expected())
}

// countForeign counts the entries of others after a full pass: by what it has
// read, so that what others change while it writes is noticed.
func (d *Dataplane) countForeign(p *fullPass) {
	if !d.kernel.legacy() {
		return
	}
	d.foreign = p.state.entries() - entriesOf(p.state.ours(p.want))
	if len(d.engine.Rejected)+len(d.stuck)+len(p.scope.kept) == 0 {
		return
	}
	// Of ours there is more than is held.
	if now, known := d.kernel.entries(); known {
		d.foreign = now - entriesOf(d.chains, d.rules)
	}
}

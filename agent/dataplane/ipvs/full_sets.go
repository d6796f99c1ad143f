package ipvs

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// setChanges are the changes of ipsets.
func (p *fullPass) setChanges() orderedSets {
	return p.config.orderChanges(p.diff,
		func(e setEntry) bool { return p.state.has(e.set, e.entry) },
		func(e setEntry) bool { return p.want.needs.entries[e] > 0 },
		p.isBound)
}

// maxBadEntries is how many entries of ipsets the kernel may refuse in one pass
// until the fault is not looked for in single Services any more.
const maxBadEntries = 100

// writeSets writes the changes of ipsets that come before those of virtual
// servers. Services whose entries the kernel rejects are failed.
func (p *fullPass) writeSets() error {
	p.diff.add = slices.DeleteFunc(p.diff.add, p.leadsNowhere)
	return p.changeSets(p.setChanges().early)
}

// shut takes out of ipsets what has packets pass to virtual servers that the kernel
// has refused: on an address that is bound for others they would come to the node's
// own servers.
func (p *fullPass) shut() error {
	var changes setChanges
	for name := range p.writer.failed {
		for _, e := range p.want.services[name].entries {
			if p.leadsNowhere(e) {
				changes.at(e.set).Remove = append(changes.at(e.set).Remove, e.entry)
			}
		}
	}
	return p.writer.writeSets(changes.sorted(p.config))
}

// leadsNowhere reports whether an entry has packets pass to a virtual server on
// kube-ipvs0 that the kernel has rejected.
func (p *fullPass) leadsNowhere(e setEntry) bool {
	k, ok := parseKey(e.entry)
	if !ok || !slices.ContainsFunc(passingSets, func(name string) bool { return p.config.set(name) == e.set }) {
		return false
	}
	i, differs := slices.BinarySearchFunc(p.diff.servers, k, func(d serverDiff, k Key) int { return d.Key.Compare(k) })
	if !differs || !p.diff.servers[i].missing || !p.diff.servers[i].bind {
		return false
	}
	_, failed := p.writer.failed[p.diff.servers[i].owner]
	return failed
}

// changeSets writes changes of ipsets but for entries that the kernel rejects.
func (p *fullPass) changeSets(changes []SetChange) error {
	for range maxBadEntries {
		err := p.writer.writeSets(changes)
		var bad *SetError
		if err == nil || !errors.As(err, &bad) || bad.Entry == "" {
			return err
		}
		owners := p.askers(setEntry{bad.Set, bad.Entry})
		if len(owners) == 0 {
			return err
		}
		for _, name := range owners {
			p.writer.failed[name] = err.Error()
		}
		i := slices.IndexFunc(changes, func(c SetChange) bool { return c.Name == bad.Set })
		if i < 0 || !slices.Contains(changes[i].Add, bad.Entry) {
			return err
		}
		changes[i].Add = slices.DeleteFunc(slices.Clone(changes[i].Add), func(e Entry) bool { return e == bad.Entry })
	}
	return fmt.Errorf("the kernel rejects more than %d entries of ipsets", maxBadEntries)
}

// askers are the Services that need an entry.
func (p *fullPass) askers(e setEntry) []dataplane.ServiceName {
	var out []dataplane.ServiceName
	for name, plan := range p.want.services {
		if slices.Contains(plan.entries, e) {
			out = append(out, name)
		}
	}
	return out
}

// writeRules writes the fixed rules, those too that belong to what stays although
// it is not desired. Those that ask an ipset which loses its last entry, and those of
// what has source ranges no more, stay until virtual servers are as they will be: they
// may keep clients outside from endpoints on other nodes, or have them masqueraded on
// their way there, or keep the node's own processes from a virtual server.
func (p *fullPass) writeRules() error {
	p.want.leave(p.diff.left, p.state)
	p.want.renounce(p.diff.renounced)
	used, out := maps.Clone(p.want.needs.used), maps.Clone(p.want.needs.out)
	for _, e := range p.diff.remove {
		if used[e.set] == 0 {
			used[e.set], p.retained = 1, true
		}
		if r, has := p.config.outRuleOf(e, p.state); has && out[r] == 0 {
			out[r], p.retained = 1, true
		}
	}
	return p.writer.writeRules(p.want.rulesFor(used, out), true)
}

// removeRules removes the rules that writeRules has left, unless a virtual server may
// still be as it was.
func (p *fullPass) removeRules() error {
	if len(p.writer.failed) > 0 || len(p.writer.stuck) > 0 {
		return nil
	}
	return p.writer.writeRules(p.want.rules(), p.retained)
}

// rewriteRules keeps the rules of what was there before, where a Service has
// failed, of which that may be.
func (p *fullPass) rewriteRules() error {
	if len(p.writer.failed) == 0 {
		return nil
	}
	stay := slices.DeleteFunc(slices.Clone(p.diff.remove), p.outdated)
	p.want.leave(slices.Concat(p.diff.left, stay), p.state)
	return p.writer.writeRules(p.want.rules(), true)
}

// outdated reports whether an entry keeps clients from a virtual server that is written
// as it should be and may be reached now, whatever else has failed.
func (p *fullPass) outdated(e setEntry) bool {
	if e.set != p.config.set(setNoLocal) && e.set != p.config.set(setNoLocalAll) {
		return false
	}
	k, _ := parseKey(e.entry)
	s, desired := p.want.needs.servers[k]
	_, failed := p.writer.failed[s.owner]
	return desired && !failed
}

// writeLateSets writes the changes of ipsets that come last.
func (p *fullPass) writeLateSets() error {
	late := p.setChanges().late
	if len(p.writer.failed) > 0 || len(p.writer.stuck) > 0 {
		for i := range late {
			set := late[i].Name
			late[i].Remove = slices.DeleteFunc(slices.Clone(late[i].Remove), func(e Entry) bool { return !p.outdated(setEntry{set, e}) })
		}
	}
	late = slices.DeleteFunc(late, func(c SetChange) bool { return len(c.Add)+len(c.Remove) == 0 })
	return p.changeSets(late)
}

package ipvs

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// setChanges returns the changes of ipsets.
func (p *fullPass) setChanges() orderedSets {
	return p.config.orderChanges(p.diff,
		func(e setEntry) bool { return p.state.has(e.set, e.entry) },
		func(e setEntry) bool { return p.want.needs.entries[e] > 0 },
		p.isBound)
}

// maxBadEntries is how many entries of ipsets the kernel may reject in one pass before the
// pass fails instead of single Services.
const maxBadEntries = 100

// writeSets writes the changes of ipsets that come before those of virtual servers.
func (p *fullPass) writeSets() error {
	p.diff.add = slices.DeleteFunc(p.diff.add, p.leadsNowhere)
	return p.changeSets(p.setChanges().early)
}

// shut removes the entries that let packets pass to virtual servers that the kernel has
// rejected: on an address that is bound for others, the node's own servers would get them.
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

// leadsNowhere reports whether an entry lets packets pass to a virtual server on kube-ipvs0
// that the kernel has rejected.
func (p *fullPass) leadsNowhere(e setEntry) bool {
	k, ok := parseKey(e.entry)
	if !ok || !p.config.passes(e.set) {
		return false
	}
	i, differs := slices.BinarySearchFunc(p.diff.servers, k, func(d serverDiff, k Key) int { return d.Key.Compare(k) })
	if !differs || !p.diff.servers[i].missing || !p.diff.servers[i].bind {
		return false
	}
	_, failed := p.writer.failed[p.diff.servers[i].owner]
	return failed
}

// changeSets writes changes of ipsets, except entries that the kernel rejects. These fail
// their Services.
func (p *fullPass) changeSets(changes []SetChange) error {
	for range maxBadEntries {
		err := p.writer.writeSets(changes)
		bad, about := errors.AsType[*SetError](err)
		if !about || bad.Entry == "" {
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

// askers returns the Services that need an entry.
func (p *fullPass) askers(e setEntry) []dataplane.ServiceName {
	var out []dataplane.ServiceName
	for name, plan := range p.want.services {
		if slices.Contains(plan.entries, e) {
			out = append(out, name)
		}
	}
	return out
}

// writeRules writes the fixed rules, including those for what stays although it is not
// desired. Rules that match an ipset which loses its last entry, and those of source ranges
// that have ended, stay until virtual servers have changed: they may block clients outside
// from endpoints on other nodes, or masquerade them on their way there, or block the node's
// own processes.
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
	return p.writer.writeRules(p.config.rules(used, out), true)
}

// removeRules removes the rules that writeRules has retained, unless a virtual server may be
// unchanged.
func (p *fullPass) removeRules() error {
	if len(p.writer.failed) > 0 || len(p.writer.stuck) > 0 {
		return nil
	}
	return p.writer.writeRules(p.want.rules(), p.retained)
}

// rewriteRules preserves the former rules if a Service has failed, because they may belong to
// it.
func (p *fullPass) rewriteRules() error {
	if len(p.writer.failed) == 0 {
		return nil
	}
	stay := slices.DeleteFunc(slices.Clone(p.diff.remove), p.outdated)
	p.want.leave(slices.Concat(p.diff.left, stay), p.state)
	return p.writer.writeRules(p.want.rules(), true)
}

// outdated reports whether an entry blocks clients from a virtual server that has been written
// successfully and must be reachable now, whatever else has failed.
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

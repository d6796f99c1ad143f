package ipvs

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
)

// Verify compares the kernel to what the last Apply left there or, for an audit, to r alone.
func (d *Dataplane) Verify(ctx context.Context, r *dataplane.Ruleset, o dataplane.VerifyOptions) (dataplane.Difference, error) {
	if err := d.open(); err != nil {
		return dataplane.Difference{}, err
	}
	if o.Audit {
		return d.audit(ctx, r)
	}
	return d.verify(ctx, r)
}

func (d *Dataplane) verify(ctx context.Context, r *dataplane.Ruleset) (dataplane.Difference, error) {
	c, err := d.configFor(&r.Node)
	if err != nil {
		return dataplane.Difference{}, err
	}
	state, err := d.read(c)
	if err != nil {
		return dataplane.Difference{}, err
	}
	evidence, err := d.evidence(c, state)
	if err != nil {
		return dataplane.Difference{}, err
	}
	want := d.desiredBy(r, c, evidence)
	if err := d.readReals(ctx, state, want); err != nil {
		return dataplane.Difference{}, err
	}
	out, rules, err := d.differs(ctx, r, want, evidence)
	if err != nil {
		return dataplane.Difference{}, err
	}
	switch {
	case out.Count == 0:
		d.watched.recount(d.kernel)
	case want == d.held:
		out.Drifted = true
	case d.held != nil:
		drift, _, err := d.differs(ctx, r, d.held, evidence)
		if err != nil {
			return dataplane.Difference{}, err
		}
		out.Drifted = drift.Count > 0
	}
	for _, s := range d.loaded() {
		out.Count++
		out.Examples = append(out.Examples, "the kernel has got the IPVS scheduler "+s+", for which another one stands in")
	}
	for _, k := range d.gone(state) {
		out.Count++
		out.Examples = append(out.Examples, "the virtual server "+k.String()+", which was in the way of a Service, does not exist any more")
	}
	out.Examples = out.Examples[:min(len(out.Examples), dataplane.MaxExamples)]
	out.Counts, out.Warnings = counted(state, evidence.ours, rules), rules.Warnings
	return out, nil
}

// loaded are the schedulers that were missing and whose modules have been loaded
// since. A full Apply takes them up. Unlike a probe this writes nothing.
func (d *Dataplane) loaded() []string {
	missing := d.missing()
	if len(missing) == 0 {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(d.proc, "modules"))
	if err != nil {
		return nil // a kernel without modules gets none
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(line, " ")
		names[name] = true
	}
	return slices.DeleteFunc(missing, func(s string) bool { return !names["ip_vs_"+s] })
}

// gone are the virtual servers of others that were there at the last full Apply, if
// Services could not have all that they ask for. A full Apply gives them what is free.
func (d *Dataplane) gone(state *snapshot) []Key {
	if len(d.conflicts.of) == 0 {
		return nil
	}
	var out []Key
	for k := range d.others.keys {
		if _, stands := state.servers[k]; !stands {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, Key.Compare)
	return out
}

// desiredBy is the desired state of the kernel: what the last Apply planned, or a fresh
// plan where there is none or something has changed since.
func (d *Dataplane) desiredBy(r *dataplane.Ruleset, c *config, e *evidence) *desired {
	if d.held != nil && !r.Full && len(r.Dirty) == 0 && reflect.DeepEqual(c, d.held.config) {
		return d.held
	}
	return c.planAll(r.Services, e.strangers()).desired
}

// differs compares the kernel to the desired state. Services of which it is not known
// what the kernel has do not count.
func (d *Dataplane) differs(ctx context.Context, r *dataplane.Ruleset, want *desired, e *evidence) (dataplane.Difference, *iptables.FixedState, error) {
	diff := compare(want, e.state, &scope{
		prune: r.Prune && len(d.engine.Rejected) == 0, kept: engine.KeptOf(r), ours: e.ours,
		former: d.former, known: d.known, draining: d.drains,
	})
	all := slices.DeleteFunc(findings(diff, want, e.state), func(f dataplane.Finding) bool {
		_, failed := d.engine.Rejected[f.Service]
		return failed
	})
	rules, err := d.rules.Compare(ctx, want.rules())
	if err != nil {
		return dataplane.Difference{}, nil, err
	}
	return dataplane.DifferenceOf(slices.Concat(all, rules.Findings, d.untuned(want.config)), dataplane.VerifyOptions{}), &rules, nil
}

// counted counts what a snapshot has of ours, beside the fixed rules.
func counted(state *snapshot, ours func(Key) bool, rules *iptables.FixedState) dataplane.Counts {
	out := dataplane.Counts{dataplane.Chains: rules.Chains, dataplane.Rules: rules.Rules}
	for k := range state.servers {
		if ours(k) {
			out[dataplane.VirtualServers]++
			out[dataplane.RealServers] += len(state.reals[k])
		}
	}
	for _, entries := range state.sets {
		out[dataplane.SetEntries] += len(entries)
	}
	return out
}

// audit is Verify beside another proxy.
func (d *Dataplane) audit(ctx context.Context, r *dataplane.Ruleset) (dataplane.Difference, error) {
	// Whoever maintains it, it is not us.
	d.held, d.former = nil, nil
	clear(d.known)
	clear(d.denied)
	d.forgetDrains()
	c, err := d.configFor(&r.Node)
	if err != nil {
		return dataplane.Difference{}, err
	}
	d.noteAddresses(c, &r.Node)
	state, err := d.read(c)
	if err != nil {
		return dataplane.Difference{}, err
	}
	evidence, err := d.evidence(c, state)
	if err != nil {
		return dataplane.Difference{}, err
	}
	want := c.planAll(r.Services, evidence.strangers())
	if err := d.readReals(ctx, state, want.desired); err != nil {
		return dataplane.Difference{}, err
	}
	diff := compare(want.desired, state, &scope{
		prune: r.Prune, kept: engine.KeptOf(r), ours: evidence.ours,
		// It gets no new connections, and the other proxy deletes it some time.
		draining: func(_ Key, _ netip.AddrPort, r Real) bool { return r.Weight == 0 },
	})
	leaveOutUnused(diff, want.desired)
	want.leave(diff.left, state)
	want.renounce(diff.renounced)
	rules, err := d.rules.Compare(ctx, want.rules())
	if err != nil {
		return dataplane.Difference{}, err
	}
	found := findings(diff, want.desired, state)
	for _, name := range slices.SortedFunc(maps.Keys(want.conflicts.of), dataplane.ServiceName.Compare) {
		reason := want.conflicts.of[name].reason
		found = append(found, dataplane.Finding{Service: name, Key: "ipvs conflict " + name.String() + " " + reason, Text: "Service " + name.String() + ": " + reason})
	}
	out := dataplane.DifferenceOf(append(found, rules.Findings...), dataplane.VerifyOptions{Audit: true})
	out.Warnings, out.Counts = rules.Warnings, counted(state, evidence.ours, &rules)
	d.watched.replace(maps.Keys(state.bound))
	d.watched.recount(d.kernel)
	d.watched.resume(len(state.servers))
	d.engine.Begin()
	return out, nil
}

// leaveOutUnused takes out of a difference what decides about no packet: that
// ipsets are missing that kube-proxy does not have, where they would be empty.
func leaveOutUnused(d *diff, w *desired) {
	for _, name := range ownSets {
		if own := w.config.set(name); w.needs.used[own] == 0 {
			d.create = slices.DeleteFunc(d.create, func(def setDef) bool { return def.Name == own })
		}
	}
}

package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/fixedrules"
)

// Verify compares the kernel to the state that the last Apply left there or, for an audit,
// to r alone.
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
	e, err := d.observe(&r.Node)
	if err != nil {
		return dataplane.Difference{}, err
	}
	want := d.actual // without a change, the last Apply's plan
	if want == nil || r.Full || len(r.Dirty) > 0 || !reflect.DeepEqual(e.config, want.config) {
		want = e.config.planAll(r.Services, e.unmanaged()).desired
	}
	if err := d.readReals(ctx, e.state, want); err != nil {
		return dataplane.Difference{}, err
	}
	out, rules, err := d.differs(ctx, r, want, e)
	if err != nil {
		return dataplane.Difference{}, err
	}
	switch {
	case out.Count == 0:
		d.watched.recount(d.kernel)
	case want == d.actual:
		out.Drifted = true
	case d.actual != nil:
		drift, _, err := d.differs(ctx, r, d.actual, e)
		if err != nil {
			return dataplane.Difference{}, err
		}
		out.Drifted = drift.Count > 0
	}
	for _, s := range d.loaded() {
		out.Count++
		out.Examples = append(out.Examples, "the kernel now has the IPVS scheduler "+s+", but another one is in use")
	}
	for _, k := range d.gone(e.state) {
		out.Count++
		out.Examples = append(out.Examples, "the virtual server "+k.String()+", which was in the way of a Service, does not exist any more")
	}
	out.Examples = out.Examples[:min(len(out.Examples), dataplane.MaxExamples)]
	out.Counts, out.Warnings = e.counts(rules), rules.Warnings
	return out, nil
}

// loaded returns the schedulers that were missing and whose modules have been loaded since.
// A full Apply uses them. Unlike a probe this writes nothing.
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

// gone returns the unmanaged virtual servers that have been deleted since the last full Apply,
// if there are conflicts. A full Apply then gives Services what is free.
func (d *Dataplane) gone(state *snapshot) []Key {
	if len(d.conflicts.of) == 0 {
		return nil
	}
	var out []Key
	for k := range d.unmanaged.keys {
		if _, found := state.servers[k]; !found {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, Key.Compare)
	return out
}

// differs compares the desired to the actual state. Services whose actual state is unknown
// do not count.
func (d *Dataplane) differs(ctx context.Context, r *dataplane.Ruleset, want *desired, e *evidence) (dataplane.Difference, *fixedrules.State, error) {
	diff := compare(want, e.state, &scope{
		prune: r.Prune && len(d.engine.Rejected) == 0, preserved: engine.PreservedOf(r), ours: e.ours,
		previous: d.previous, known: d.known, draining: d.drains,
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

// counts counts our objects in the kernel, including the fixed rules.
func (e *evidence) counts(rules *fixedrules.State) dataplane.Counts {
	out := dataplane.Counts{dataplane.Chains: rules.Chains, dataplane.Rules: rules.Rules}
	for k := range e.state.servers {
		if e.ours(k) {
			out[dataplane.VirtualServers]++
			out[dataplane.RealServers] += len(e.state.reals[k])
		}
	}
	for _, entries := range e.state.sets {
		out[dataplane.SetEntries] += len(entries)
	}
	return out
}

// audit is Verify beside another proxy, which maintains the kernel.
func (d *Dataplane) audit(ctx context.Context, r *dataplane.Ruleset) (dataplane.Difference, error) {
	d.actual, d.previous = nil, nil
	clear(d.known)
	clear(d.denied)
	d.forgetDrains()
	e, err := d.observe(&r.Node)
	if err != nil {
		return dataplane.Difference{}, err
	}
	d.noteAddresses(e.config)
	want := e.config.planAll(r.Services, e.unmanaged())
	if err := d.readReals(ctx, e.state, want.desired); err != nil {
		return dataplane.Difference{}, err
	}
	diff := compare(want.desired, e.state, &scope{
		prune: r.Prune, preserved: engine.PreservedOf(r), ours: e.ours,
		// It gets no new connections, and the other proxy deletes it later.
		draining: func(_ Key, _ netip.AddrPort, r Real) bool { return r.Weight == 0 },
	})
	// An empty ipset that kube-proxy does not have decides about no packet.
	for _, name := range []string{setNoLocal, setNoLocalAll} {
		if own := e.config.set(name); want.needs.used[own] == 0 {
			diff.create = slices.DeleteFunc(diff.create, func(missing SetName) bool { return missing == own })
		}
	}
	want.leave(diff.left, e.state)
	want.renounce(diff.renounced)
	rules, err := d.rules.Compare(ctx, want.rules())
	if err != nil {
		return dataplane.Difference{}, err
	}
	found := findings(diff, want.desired, e.state)
	for _, name := range slices.SortedFunc(maps.Keys(want.conflicts.of), dataplane.ServiceName.Compare) {
		reason := want.conflicts.of[name].Reason
		found = append(found, dataplane.Finding{Service: name, Key: "ipvs conflict " + name.String() + " " + reason, Text: "Service " + name.String() + ": " + reason})
	}
	out := dataplane.DifferenceOf(append(found, rules.Findings...), dataplane.VerifyOptions{Audit: true})
	out.Warnings, out.Counts = rules.Warnings, e.counts(&rules)
	d.watched.replace(maps.Keys(e.state.bound))
	d.watched.recount(d.kernel)
	d.watched.resume(len(e.state.servers))
	d.engine.Begin()
	return out, nil
}

// finder collects the findings of a difference.
type finder struct {
	*diff
	want *desired
	have *snapshot
	out  []dataplane.Finding
}

// findings returns a difference as human-readable sentences.
func findings(d *diff, w *desired, have *snapshot) []dataplane.Finding {
	f := &finder{diff: d, want: w, have: have}
	var none dataplane.ServiceName
	if d.device {
		f.add(none, "device missing", "the device %s is missing", deviceName)
	}
	owned := f.ownerByAddress()
	for _, a := range d.bind {
		f.add(owned[a], fmt.Sprintf("address missing %s", a), "address %s is missing on %s", a, deviceName)
	}
	for _, a := range d.unbind {
		f.add(none, fmt.Sprintf("address extra %s", a), "address %s on %s belongs to no Service", a, deviceName)
	}
	for _, set := range d.create {
		f.add(none, fmt.Sprintf("set missing %s", set), "ipset %s is missing", set)
	}
	owners := f.entryOwners()
	for _, e := range d.add {
		f.add(owners[e], fmt.Sprintf("entry missing %s %s", e.set, e.entry), "entry %s is missing in ipset %s", e.entry, e.set)
	}
	for _, e := range d.remove {
		f.add(none, fmt.Sprintf("entry extra %s %s", e.set, e.entry), "unexpected entry %s in ipset %s", e.entry, e.set)
	}
	for i := range d.servers {
		f.server(&d.servers[i])
	}
	for _, k := range d.extra {
		f.add(none, fmt.Sprintf("server extra %s", k), "virtual server %s belongs to no Service", k)
	}
	return f.out
}

func (f *finder) add(service dataplane.ServiceName, key, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if service != (dataplane.ServiceName{}) {
		text += fmt.Sprintf(" (Service %s)", service)
	}
	f.out = append(f.out, dataplane.Finding{Service: service, Key: "ipvs " + key, Text: text})
}

func (f *finder) server(d *serverDiff) {
	if d.missing {
		f.add(d.owner, fmt.Sprintf("server missing %s %v %v", d.Key, d.Server, d.reals), "virtual server %s is missing", d.Key)
		return
	}
	if d.differs {
		f.add(d.owner, fmt.Sprintf("server differs %s %v %v", d.Key, d.Server, d.have),
			"virtual server %s has %s, not %s", d.Key, describe(d.have), describe(d.Server))
	}
	for _, real := range d.add {
		f.add(d.owner, fmt.Sprintf("real missing %s %s", d.Key, real), "virtual server %s lacks the real server %s", d.Key, real)
	}
	for _, real := range d.reweigh {
		have := f.have.reals[d.Key][real]
		what := fmt.Sprintf("weight %d, not 1", have.Weight)
		if have.Forwarding != 0 {
			what = "another forwarding than masquerading"
		}
		f.add(d.owner, fmt.Sprintf("real differs %s %s %d %d", d.Key, real, have.Weight, have.Forwarding),
			"real server %s of virtual server %s has %s", real, d.Key, what)
	}
	for _, real := range d.drop {
		f.add(d.owner, fmt.Sprintf("real extra %s %s", d.Key, real), "virtual server %s has the unexpected real server %s", d.Key, real)
	}
}

// describe prints how a virtual server selects real servers, human-readable.
func describe(s Server) string {
	persistence := "no persistence"
	if s.Flags&FlagPersistent != 0 {
		persistence = fmt.Sprintf("persistence of %d s", s.Timeout)
	}
	out := "scheduler " + s.Scheduler + ", " + persistence
	if rest := s.Flags &^ FlagPersistent; rest != 0 {
		out += fmt.Sprintf(", flags %#x", uint32(rest))
	}
	return out
}

// ownerByAddress returns a Service that needs an address, if one is missing.
func (f *finder) ownerByAddress() map[netip.Addr]dataplane.ServiceName {
	out := map[netip.Addr]dataplane.ServiceName{}
	if len(f.bind) == 0 {
		return out
	}
	for _, k := range slices.SortedFunc(maps.Keys(f.want.needs.servers), Key.Compare) {
		if _, found := out[k.Addr]; !found {
			out[k.Addr] = f.want.needs.servers[k].owner
		}
	}
	return out
}

// entryOwners returns a Service that needs an entry, if one is missing.
func (f *finder) entryOwners() map[setEntry]dataplane.ServiceName {
	out := map[setEntry]dataplane.ServiceName{}
	if len(f.diff.add) == 0 {
		return out
	}
	for _, name := range slices.SortedFunc(maps.Keys(f.want.services), dataplane.ServiceName.Compare) {
		for _, e := range f.want.services[name].entries {
			if _, found := out[e]; !found {
				out[e] = name
			}
		}
	}
	return out
}

package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// findings are a difference in human-readable sentences.
func findings(d *diff, w *desired, have *snapshot) []dataplane.Finding {
	f := &finder{diff: d, want: w, have: have}
	if d.device {
		f.say(dataplane.ServiceName{}, "device missing", "the device kube-ipvs0 is missing")
	}
	owned := f.ownerByAddress()
	for _, a := range d.bind {
		f.say(owned[a], fmt.Sprintf("address missing %s", a), "address %s is missing on kube-ipvs0", a)
	}
	for _, a := range d.unbind {
		f.say(dataplane.ServiceName{}, fmt.Sprintf("address extra %s", a), "address %s on kube-ipvs0 belongs to no Service", a)
	}
	for _, def := range d.create {
		f.say(dataplane.ServiceName{}, fmt.Sprintf("set missing %s", def.Name), "ipset %s is missing", def.Name)
	}
	owners := f.entryOwners()
	for _, e := range d.add {
		f.say(owners[e], fmt.Sprintf("entry missing %s %s", e.set, e.entry), "entry %s is missing in ipset %s", e.entry, e.set)
	}
	for _, e := range d.remove {
		f.say(dataplane.ServiceName{}, fmt.Sprintf("entry extra %s %s", e.set, e.entry), "entry %s is too many in ipset %s", e.entry, e.set)
	}
	for i := range d.servers {
		f.server(&d.servers[i])
	}
	for _, k := range d.extra {
		f.say(dataplane.ServiceName{}, fmt.Sprintf("server extra %s", k), "virtual server %s belongs to no Service", k)
	}
	return f.out
}

// finder collects findings.
type finder struct {
	*diff
	want *desired
	have *snapshot
	out  []dataplane.Finding
}

func (f *finder) say(service dataplane.ServiceName, key, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if service != (dataplane.ServiceName{}) {
		text += fmt.Sprintf(" (Service %s)", service)
	}
	f.out = append(f.out, dataplane.Finding{Service: service, Key: "ipvs " + key, Text: text})
}

func (f *finder) server(d *serverDiff) {
	if d.missing {
		f.say(d.owner, fmt.Sprintf("server missing %s %v %v", d.Key, d.Server, d.reals), "virtual server %s is missing", d.Key)
		return
	}
	if d.differs {
		f.say(d.owner, fmt.Sprintf("server differs %s %v %v", d.Key, d.Server, d.have),
			"virtual server %s has %s, not %s", d.Key, describe(d.have), describe(d.Server))
	}
	for _, real := range d.add {
		f.say(d.owner, fmt.Sprintf("real missing %s %s", d.Key, real), "virtual server %s lacks the real server %s", d.Key, real)
	}
	for _, real := range d.reweigh {
		have := f.have.reals[d.Key][real]
		what := fmt.Sprintf("weight %d, not 1", have.Weight)
		if have.Forwarding != 0 {
			what = "another forwarding than masquerading"
		}
		f.say(d.owner, fmt.Sprintf("real differs %s %s %d %d", d.Key, real, have.Weight, have.Forwarding),
			"real server %s of virtual server %s has %s", real, d.Key, what)
	}
	for _, real := range d.drop {
		f.say(d.owner, fmt.Sprintf("real extra %s %s", d.Key, real), "virtual server %s has the real server %s too many", d.Key, real)
	}
}

// describe says how a virtual server picks real servers, human-readable.
func describe(s Server) string {
	parts := []string{"scheduler " + s.Scheduler}
	if s.Flags&FlagPersistent != 0 {
		parts = append(parts, fmt.Sprintf("persistence of %d s", s.Timeout))
	} else {
		parts = append(parts, "no persistence")
	}
	if rest := s.Flags &^ FlagPersistent; rest != 0 {
		parts = append(parts, fmt.Sprintf("flags %#x", uint32(rest)))
	}
	return strings.Join(parts, ", ")
}

// ownerByAddress returns a Service that needs an address that is missing.
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

// entryOwners returns the Service that needs an entry that is missing.
func (f *finder) entryOwners() map[setEntry]dataplane.ServiceName {
	out := map[setEntry]dataplane.ServiceName{}
	if len(f.add) == 0 {
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

package ipvs

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// snapshot is the actual kernel state.
type snapshot struct {
	servers map[Key]Server
	// reals are the real servers of desired servers.
	reals  map[Key]map[netip.AddrPort]Real
	bound  sets.Set[netip.Addr]
	device bool
	sets   map[SetName]sets.Set[Entry]
}

// has reports whether an ipset has an entry.
func (s *snapshot) has(set SetName, e Entry) bool { return s.sets[set].Has(e) }

// scope limits what a comparison finds.
type scope struct {
	// prune: also find what belongs to no Service.
	prune bool
	// preserved are the Services of which it only finds what is missing; see Ruleset.Preserve.
	preserved map[dataplane.ServiceName]struct{}
	// ours reports whether a virtual server is ours.
	ours func(Key) bool
	// previous is the state that our last Apply left in the kernel; nil: unknown. Known
	// are the virtual servers that we have added.
	previous *desired
	known    map[Key]dataplane.ServiceName
	// draining reports whether a real server may stay although it is not desired.
	draining func(Key, netip.AddrPort, Real) bool
}

// diff is how the kernel differs from the desired state.
type diff struct {
	device       bool // is missing
	bind, unbind []netip.Addr
	create       []SetName
	add, remove  []setEntry
	// left are entries that are not desired but must stay; renounced are desired ones
	// that must not be added. Sorted.
	left, renounced []setEntry
	servers         []serverDiff // sorted
	extra           []Key        // sorted
}

// serverDiff is how a virtual server differs.
type serverDiff struct {
	ownedServer
	missing, differs bool
	have             Server
	// add are the missing real servers, reweigh those with a wrong weight or forwarding,
	// drop the superfluous ones.
	add, reweigh, drop []netip.AddrPort
}

func (d *serverDiff) empty() bool {
	return !d.missing && !d.differs && len(d.add)+len(d.reweigh)+len(d.drop) == 0
}

// comparison compares the desired to the actual state.
type comparison struct {
	want *desired
	have *snapshot
	*scope
	out diff
}

func compare(w *desired, have *snapshot, s *scope) *diff {
	c := &comparison{want: w, have: have, scope: s}
	c.addresses()
	c.sets()
	c.compareServers()
	c.extraServers()
	c.extraAddresses()
	return &c.out
}

func (c *comparison) preserves(name dataplane.ServiceName) bool {
	_, preserved := c.preserved[name]
	return preserved
}

// removes reports whether to find what belongs to no Service. It is unknown what belongs
// to preserved Services.
func (c *comparison) removes() bool { return c.prune && len(c.preserved) == 0 }

func (c *comparison) addresses() {
	c.out.device = !c.have.device
	for a := range c.want.needs.bound {
		if !c.have.bound.Has(a) {
			c.out.bind = append(c.out.bind, a)
		}
	}
	slices.SortFunc(c.out.bind, netip.Addr.Compare)
}

func (c *comparison) sets() {
	for _, name := range SetNames(c.want.config.family) {
		if _, found := c.have.sets[name]; !found {
			c.out.create = append(c.out.create, name)
		}
	}
	left := c.served()
	for e := range c.want.needs.entries {
		switch {
		case c.have.has(e.set, e.entry):
		case left[e]:
			c.out.renounced = append(c.out.renounced, e)
		default:
			c.out.add = append(c.out.add, e)
		}
	}
	slices.SortFunc(c.out.add, setEntry.compare)
	of := c.concerned()
	for set, entries := range c.have.sets {
		for entry := range entries {
			e := setEntry{set, entry}
			switch {
			case c.want.needs.entries[e] > 0:
			case !c.guards(e) && (c.removes() || of(e)):
				c.out.remove = append(c.out.remove, e)
			default:
				c.out.left = append(c.out.left, e)
			}
		}
	}
	slices.SortFunc(c.out.remove, setEntry.compare)
	slices.SortFunc(c.out.left, setEntry.compare)
}

// guards reports whether an entry protects the endpoints of a virtual server from clients
// outside, and must stay because the virtual server of a preserved Service does.
func (c *comparison) guards(e setEntry) bool {
	k, ok := parseKey(e.entry)
	if !ok || e.set != c.want.config.set(setNoLocal) {
		return false
	}
	if s, desired := c.want.needs.servers[k]; desired {
		return c.preserves(s.owner) && len(c.have.reals[k]) > 0
	}
	owner, known := c.known[k]
	return known && c.preserves(owner)
}

// target is the destination in an entry: the part before the source.
func target(e Entry) string {
	parts := strings.SplitN(string(e), ",", 3)
	return strings.Join(parts[:min(len(parts), 2)], ",")
}

// about reports whether an ipset has destinations of virtual servers.
func (c *comparison) about(set SetName) bool {
	return set != c.want.config.set(setLoopBack) && set != c.want.config.set(setBound) && set != c.want.config.set(setHealthCheck)
}

// concerned returns a function that reports whether an entry may be removed even if what
// belongs to no Service must stay: it is from our last Apply, or about how a desired
// virtual server is served.
func (c *comparison) concerned() func(setEntry) bool {
	destinations := map[string]bool{}
	if !c.removes() {
		for k, s := range c.want.needs.servers {
			if !c.preserves(s.owner) {
				destinations[string(keyEntry(k))] = true
				if !s.bind {
					destinations[protocolName(k.Protocol)+strconv.Itoa(int(k.Port))] = true
				}
			}
		}
	}
	ports := map[SetName]string{}
	for _, s := range nodePortSets {
		if s.directions == onlyPort {
			ports[c.want.config.set(s.all)], ports[c.want.config.set(s.local)] = protocolName(s.protocol), protocolName(s.protocol)
		}
	}
	return func(e setEntry) bool {
		if c.previous != nil && c.previous.needs.entries[e] > 0 {
			if !c.previous.left.Has(e) {
				return true
			}
		}
		if p, found := ports[e.set]; found {
			return destinations[p+string(e.entry)]
		}
		return c.about(e.set) && destinations[target(e.entry)]
	}
}

// served returns the entries of only preserved Services that must stay missing: the kernel has
// the virtual server, and other entries for it. A virtual server without real servers
// gets the desired ones, and the entries that guard them.
func (c *comparison) served() map[setEntry]bool {
	counts := map[setEntry]int{}
	for name := range c.preserved {
		plan := c.want.services[name]
		if plan == nil {
			continue
		}
		standing, bare := map[string]bool{}, map[string]bool{}
		for i := range plan.servers {
			k := plan.servers[i].Key
			if _, found := c.have.servers[k]; found && c.named(k) {
				standing[string(keyEntry(k))] = true
				bare[string(keyEntry(k))] = len(c.have.reals[k]) == 0
				if !plan.servers[i].bind {
					standing[strconv.Itoa(int(k.Port))] = true
				}
			}
		}
		for _, e := range plan.entries {
			if guard := e.set == c.want.config.set(setNoLocal); guard && bare[target(e.entry)] {
				continue
			}
			if c.about(e.set) && standing[target(e.entry)] {
				counts[e]++
			}
		}
	}
	out := map[setEntry]bool{}
	for e, n := range counts {
		out[e] = n == c.want.needs.entries[e]
	}
	return out
}

// named reports whether an ipset in the kernel names a virtual server or its port.
func (c *comparison) named(k Key) bool {
	return c.have.names(c.want.config, k) || c.have.has(c.want.config.set(setNodePortTCP), portEntry(k.Port)) ||
		c.have.has(c.want.config.set(setNodePortUDP), portEntry(k.Port))
}

func (c *comparison) compareServers() {
	for _, k := range slices.SortedFunc(maps.Keys(c.want.needs.servers), Key.Compare) {
		d := serverDiff{ownedServer: c.want.needs.servers[k]}
		have, found := c.have.servers[k]
		if found {
			d.have = have
			preserved := c.preserves(d.owner)
			if preserved && len(c.have.reals[k]) > 0 {
				continue // the kernel's may be newer
			}
			d.differs = have != d.Server && !preserved
		}
		d.missing = !found
		c.compareReals(&d)
		if !d.empty() {
			c.out.servers = append(c.out.servers, d)
		}
	}
}

func (c *comparison) compareReals(d *serverDiff) {
	have := c.have.reals[d.Key]
	for _, real := range d.reals {
		switch r, found := have[real]; {
		case !found:
			d.add = append(d.add, real)
		case r.Weight != 1 || r.Forwarding != 0:
			d.reweigh = append(d.reweigh, real)
		}
	}
	if len(have) == len(d.reals)-len(d.add) {
		return
	}
	for real, r := range have {
		if _, desired := slices.BinarySearchFunc(d.reals, real, netip.AddrPort.Compare); !desired && !c.draining(d.Key, real, r) {
			d.drop = append(d.drop, real)
		}
	}
	slices.SortFunc(d.drop, netip.AddrPort.Compare)
}

func (c *comparison) extraServers() {
	for k := range c.have.servers {
		if _, desired := c.want.needs.servers[k]; desired {
			continue
		}
		owner, known := c.known[k]
		if known && !c.preserves(owner) || c.removes() && c.ours(k) && !c.want.config.excluded(k.Addr) {
			c.out.extra = append(c.out.extra, k)
		}
	}
	slices.SortFunc(c.out.extra, Key.Compare)
}

// extraAddresses finds the addresses that should not be bound, except those on which an
// unmanaged virtual server stays.
func (c *comparison) extraAddresses() {
	stay := map[netip.Addr]bool{}
	for k := range c.have.servers {
		_, desired := c.want.needs.servers[k]
		if _, extra := slices.BinarySearchFunc(c.out.extra, k, Key.Compare); !desired && !extra {
			stay[k.Addr] = true
		}
	}
	for a := range c.have.bound {
		if c.want.needs.bound[a] > 0 || stay[a] {
			continue
		}
		if c.removes() || c.previous != nil && c.previous.needs.bound[a] > 0 {
			c.out.unbind = append(c.out.unbind, a)
		}
	}
	slices.SortFunc(c.out.unbind, netip.Addr.Compare)
}

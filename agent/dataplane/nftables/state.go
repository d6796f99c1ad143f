package nftables

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nft"
)

// owned is a destination in the table with the Service that it belongs to.
type owned struct {
	service dataplane.ServiceName
	*destination
}

// state is what the table has. The endpoints of its destinations are in the order of their indexes.
type state struct {
	destinations map[key]owned
	services     map[dataplane.ServiceName]*servicePlan
	// clusterIPs and hairpin count the Services that need each address.
	clusterIPs, hairpin map[netip.Addr]int
	chains              map[chain]struct{}
	timeouts            map[int32]struct{} // of session affinity
}

func newState() *state {
	return &state{
		destinations: map[key]owned{}, services: map[dataplane.ServiceName]*servicePlan{},
		clusterIPs: map[netip.Addr]int{}, hairpin: map[netip.Addr]int{},
		chains: map[chain]struct{}{}, timeouts: map[int32]struct{}{},
	}
}

// update is a change of a state: what a batch writes, and what the table has after it.
type update struct {
	*config
	*change
	of *state

	destinations        map[key]owned // without a destination: none
	services            map[dataplane.ServiceName]*servicePlan
	clusterIPs, hairpin map[netip.Addr]int // differences of counts
	chains              map[chain]struct{} // new ones
	timeouts            map[int32]struct{} // new ones
	// released are endpoints that affine clients may keep no longer, by destination.
	released map[key][]netip.AddrPort
}

func (c *config) newUpdate(of *state) *update {
	return &update{
		config: c, change: newChange(), of: of,
		destinations: map[key]owned{}, services: map[dataplane.ServiceName]*servicePlan{},
		clusterIPs: map[netip.Addr]int{}, hairpin: map[netip.Addr]int{},
		chains: map[chain]struct{}{}, timeouts: map[int32]struct{}{}, released: map[key][]netip.AddrPort{},
	}
}

// demote replaces what a Service is to have by what the table has of it.
func (s *state) demote(name dataplane.ServiceName, actual *state) {
	if plan := s.services[name]; plan != nil {
		for i := range plan.destinations {
			delete(s.destinations, plan.destinations[i].key)
		}
	}
	delete(s.services, name)
	plan := &servicePlan{name: name}
	for k, o := range actual.destinations {
		if s.destinations[k].destination == nil && o.service == name {
			s.destinations[k] = o
			plan.destinations = append(plan.destinations, *o.destination)
		}
	}
	if len(plan.destinations) > 0 {
		s.services[name] = plan
	}
}

// actual returns a destination as the table has it after the update so far.
func (u *update) actual(k key) owned {
	if o, found := u.destinations[k]; found {
		return o
	}
	return u.of.destinations[k]
}

// set changes a Service to a plan; nil: it ends. The plan's endpoints are put in order.
func (u *update) set(name dataplane.ServiceName, plan *servicePlan) {
	former := u.of.services[name]
	desired := map[key]struct{}{}
	if plan != nil {
		for i := range plan.destinations {
			d := &plan.destinations[i]
			desired[d.key] = struct{}{}
			u.setDestination(name, d)
		}
	}
	if former != nil {
		for i := range former.destinations {
			k := former.destinations[i].key
			if _, still := desired[k]; !still && u.actual(k).service == name {
				u.removeDestination(k)
			}
		}
	}
	u.count(former, -1)
	u.count(plan, 1)
	u.services[name] = plan
}

func (u *update) setDestination(name dataplane.ServiceName, d *destination) {
	before := u.actual(d.key)
	if before.destination != nil {
		d.endpoints, d.local = arrange(before.endpoints, d.endpoints), arrange(before.local, d.local)
		u.release(before.destination, d)
	}
	for _, c := range []chain{d.chain, d.circuit} {
		if _, has := u.of.chains[c]; !has {
			u.chains[c] = struct{}{}
		}
	}
	if _, has := u.of.timeouts[d.affinity]; !has && d.affinity != 0 {
		u.timeouts[d.affinity] = struct{}{}
	}
	u.replaceDestination(before.service, name, before.destination, d)
	u.destinations[d.key] = owned{name, d}
}

func (u *update) removeDestination(k key) {
	before := u.actual(k)
	if before.destination == nil {
		return
	}
	u.release(before.destination, &destination{})
	u.replaceDestination(before.service, before.service, before.destination, nil)
	u.destinations[k] = owned{}
}

// release notes the endpoints that affine clients of a destination lose.
func (u *update) release(before, after *destination) {
	if before.affinity == 0 {
		return
	}
	has := map[netip.AddrPort]struct{}{}
	for _, e := range slices.Concat(after.endpoints, after.local) {
		has[e] = struct{}{}
	}
	for _, e := range slices.Concat(before.endpoints, before.local) {
		if _, still := has[e]; !still || after.affinity == 0 {
			u.released[before.key] = append(u.released[before.key], e)
		}
	}
}

// count adds to the counts of the addresses of a plan; nil: none.
func (u *update) count(p *servicePlan, n int) {
	if p == nil {
		return
	}
	if p.clusterIP.IsValid() {
		u.clusterIPs[p.clusterIP] += n
	}
	for _, a := range p.hairpin {
		u.hairpin[a] += n
	}
}

// batch appends the update to a batch.
func (u *update) batch(b *nft.Batch) {
	t := u.table()
	if len(u.timeouts) > 0 {
		u.addTimeouts(b)
	}
	has := maps.Clone(u.of.chains)
	for c := range u.chains {
		u.addChain(b, c, has)
	}
	u.chains = has
	for a, n := range u.clusterIPs {
		u.counted(setClusterIPs, a.AsSlice(), u.of.clusterIPs[a], n)
	}
	for a, n := range u.hairpin {
		u.counted(setHairpin, slices.Concat(a.AsSlice(), a.AsSlice()), u.of.hairpin[a], n)
	}
	u.appendTo(b, t, u.setNames(u.of.timeouts, u.timeouts))
}

// addTimeouts adds sets of session affinity, and the rules that use all of them.
func (u *update) addTimeouts(b *nft.Batch) {
	t := u.table()
	all := slices.Sorted(maps.Keys(u.of.timeouts))
	for seconds := range u.timeouts {
		b.AddSet(t, u.affine(seconds))
		all = append(all, seconds)
	}
	slices.Sort(all)
	for _, c := range u.fixedChains(all) {
		if !c.learns {
			continue
		}
		b.FlushChain(t, c.name)
		for _, r := range c.rules {
			b.AddRule(t, c.name, "", r...)
		}
	}
}

// counted adds or deletes an element of a set whose count changes by n.
func (u *update) counted(set string, k []byte, before, n int) {
	e := &nft.Element{Key: k}
	switch {
	case before == 0 && n > 0:
		u.replace(set, nil, e)
	case before > 0 && before+n <= 0:
		u.replace(set, e, nil)
	}
}

// setNames are the sets in the order in which a batch changes them.
func (c *config) setNames(timeouts ...map[int32]struct{}) []string {
	var out []string
	for _, s := range c.sets() {
		out = append(out, s.Name)
	}
	for _, of := range timeouts {
		for _, seconds := range slices.Sorted(maps.Keys(of)) {
			out = append(out, affineSet(seconds))
		}
	}
	return out
}

// done makes the update the state, once the kernel has it.
func (u *update) done() {
	for k, o := range u.destinations {
		if o.destination == nil {
			delete(u.of.destinations, k)
		} else {
			u.of.destinations[k] = o
		}
	}
	for name, plan := range u.services {
		if plan == nil {
			delete(u.of.services, name)
		} else {
			u.of.services[name] = plan
		}
	}
	add := func(to, n map[netip.Addr]int) {
		for a, n := range n {
			if to[a] += n; to[a] <= 0 {
				delete(to, a)
			}
		}
	}
	add(u.of.clusterIPs, u.clusterIPs)
	add(u.of.hairpin, u.hairpin)
	u.of.chains = u.chains
	maps.Copy(u.of.timeouts, u.timeouts)
}

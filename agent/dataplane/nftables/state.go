package nftables

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
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
	numbered            numberedSets
	tally               tally
}

func newState() *state {
	return &state{
		tally:        tally{elements: map[string]int{}},
		destinations: map[key]owned{}, services: map[dataplane.ServiceName]*servicePlan{},
		clusterIPs: map[netip.Addr]int{}, hairpin: map[netip.Addr]int{},
		chains: map[chain]struct{}{}, numbered: numberedSets{},
	}
}

// update is a change of a state: what a batch writes, and what the table has after it.
type update struct {
	*config
	*change
	of *state

	destinations        map[key]owned // those that change; without a destination: none
	services            map[dataplane.ServiceName]*servicePlan
	clusterIPs, hairpin map[netip.Addr]int // differences of counts
	chains              map[chain]struct{} // new ones
	numbered            numberedSets       // needed ones; after layout: all
	// dropped are endpoints that affine clients may no longer use, by destination.
	dropped map[key][]netip.AddrPort
}

func (c *config) newUpdate(of *state) *update {
	return &update{
		config: c, change: newChange(), of: of,
		destinations: map[key]owned{}, services: map[dataplane.ServiceName]*servicePlan{},
		clusterIPs: map[netip.Addr]int{}, hairpin: map[netip.Addr]int{},
		chains: map[chain]struct{}{}, numbered: numberedSets{}, dropped: map[key][]netip.AddrPort{},
	}
}

// demote replaces what Services are to have by what the table has of them, by its listing.
func (s *state) demote(names map[dataplane.ServiceName]struct{}, listed *state) {
	for name := range names {
		if plan := s.services[name]; plan != nil {
			for i := range plan.destinations {
				delete(s.destinations, plan.destinations[i].key)
			}
			s.count(plan, -1)
		}
		delete(s.services, name)
	}
	for k, o := range listed.destinations {
		if _, demoted := names[o.service]; !demoted || s.destinations[k].destination != nil {
			continue
		}
		plan := s.services[o.service]
		if plan == nil {
			plan = &servicePlan{name: o.service}
			s.services[o.service] = plan
		}
		s.destinations[k] = o
		plan.destinations = append(plan.destinations, *o.destination)
		if _, found := listed.clusterIPs[k.Addr()]; found {
			plan.clusterIP = k.Addr()
		}
		for _, e := range slices.Concat(o.endpoints, o.local) {
			if _, found := listed.hairpin[e.Addr()]; found {
				plan.hairpin = append(plan.hairpin, e.Addr())
			}
		}
	}
	for name := range names {
		if plan := s.services[name]; plan != nil {
			slices.SortFunc(plan.hairpin, netip.Addr.Compare)
			plan.hairpin = slices.Compact(plan.hairpin)
			s.count(plan, 1)
		}
	}
}

// count adds to the counts of the addresses of a plan.
func (s *state) count(p *servicePlan, n int) {
	add(s.clusterIPs, p.clusterIP, n)
	for _, a := range p.hairpin {
		add(s.hairpin, a, n)
	}
}

// add adds to the count of a valid address. One of 0 goes.
func add(to map[netip.Addr]int, a netip.Addr, n int) {
	if !a.IsValid() {
		return
	}
	if to[a] += n; to[a] <= 0 {
		delete(to, a)
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
		if before.service == name && before.same(d) {
			return
		}
		u.release(before.destination, d)
	}
	for _, c := range []chain{d.chain, d.circuit} {
		if _, has := u.of.chains[c]; !has {
			u.chains[c] = struct{}{}
		}
	}
	d.addNumbered(u.numbered)
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
	for _, e := range after.local {
		has[e] = struct{}{}
	}
	if !after.chain.local || before.chain.local { // otherwise clients outside may not keep those of other nodes
		for _, e := range after.endpoints {
			has[e] = struct{}{}
		}
	}
	for _, e := range slices.Concat(before.endpoints, before.local) {
		if _, still := has[e]; !still || after.affinity == 0 {
			u.dropped[before.key] = append(u.dropped[before.key], e)
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

// layout appends to a batch the chains and sets that the update needs and the table lacks.
func (u *update) layout(b *nft.Batch) {
	u.addNumbered(b)
	has := maps.Clone(u.of.chains)
	for c := range u.chains {
		u.addChain(b, c, has)
	}
	u.chains = has
}

// laidOut notes that the kernel has the layout.
func (u *update) laidOut() {
	u.of.chains = u.chains
	u.of.numbered = u.numbered
}

// batch appends to a batch the elements of the update.
func (u *update) batch(b *nft.Batch) {
	for a, n := range u.clusterIPs {
		u.counted(setClusterIPs, a.AsSlice(), u.of.clusterIPs[a], n)
	}
	for a, n := range u.hairpin {
		u.counted(setHairpin, slices.Concat(a.AsSlice(), a.AsSlice()), u.of.hairpin[a], n)
	}
	u.appendTo(b, u.table(), u.setNames(u.of.numbered))
}

// addNumbered adds the numbered sets that the table lacks, and the rules that use all of them.
func (u *update) addNumbered(b *nft.Batch) {
	t := u.table()
	all := maps.Clone(u.of.numbered)
	for s := range u.numbered {
		if _, has := all[s]; !has {
			b.AddSet(t, u.config.numbered(s))
			all[s] = struct{}{}
		}
	}
	u.numbered = all
	if len(all) == len(u.of.numbered) {
		return
	}
	for _, c := range u.fixedChains(all) {
		if !c.numbered {
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
func (c *config) setNames(numbered numberedSets) []string {
	var out []string
	for _, s := range c.sets() {
		out = append(out, s.Name)
	}
	for s := range numbered {
		out = append(out, s.name())
	}
	slices.Sort(out[len(out)-len(numbered):])
	return out
}

// done makes the update the state, once the kernel has it.
func (u *update) done() {
	for k, o := range u.destinations {
		if o.destination == nil {
			delete(u.of.destinations, k)
		}
	}
	for name, plan := range u.services {
		if plan == nil {
			delete(u.of.services, name)
			continue
		}
		u.of.services[name] = plan
		for i := range plan.destinations { // all of them, so that the former plan can go
			u.of.destinations[plan.destinations[i].key] = owned{name, &plan.destinations[i]}
		}
	}
	for a, n := range u.clusterIPs {
		add(u.of.clusterIPs, a, n)
	}
	for a, n := range u.hairpin {
		add(u.of.hairpin, a, n)
	}
	u.of.countChange(u.change)
}

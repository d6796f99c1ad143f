package agent

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/syncer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// What a sync writes, in pairs of a port with an endpoint, an address or a source range, so that
// one namespace's large Services do not delay the small changes of all others: a node takes some
// tenths of a second for the last one.
const (
	// smallOfNamespace bounds the small changes of one namespace, smallInAll those of all
	// together. What exceeds them is costly, and waits until the syncer has rested.
	smallOfNamespace = 500
	smallInAll       = 2_000
	// costlyAtOnce bounds the costly changes of one sync; a larger Service is written by itself.
	costlyAtOnce = 10_000
)

// setAside is a change that waits.
type setAside struct {
	force bool // see dirty
	since time.Time
	// before is what holds while it waits, if nothing waits that came before it.
	before appliedState
}

// setCostlyAside decides what the next sync takes: all small changes, and, if all, some of the
// costly ones, those that have waited longest. The others wait for a later call.
func (s *store) setCostlyAside(all bool) syncer.Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	former := s.aside
	s.aside = map[dataplane.ServiceName]setAside{}
	for name, change := range former {
		s.dirty[name] = s.dirty[name] || change.force
	}
	if !s.complete || s.anyFull() || s.inAudit() || s.removal.wanted {
		return syncer.Load{} // the kernel is read as a whole, whatever has changed
	}
	index := s.byAddress()
	costly := s.costly(index)
	if len(costly) == 0 {
		return syncer.Load{}
	}
	now := s.clock.Now()
	for name := range costly {
		change, waited := former[name]
		if !waited {
			change = setAside{since: now, before: s.taken}
		}
		change.force = s.dirty[name]
		s.aside[name] = change
	}
	if all {
		s.takeOldest(index)
	}
	for name := range s.aside {
		delete(s.dirty, name)
	}
	return syncer.Load{Costly: all, Left: len(s.aside) > 0}
}

// takeOldest takes of what is set aside as much as one sync writes. The caller holds mu.
func (s *store) takeOldest(index map[netip.AddrPort][]dataplane.ServiceName) {
	order := slices.SortedFunc(maps.Keys(s.aside), func(a, b dataplane.ServiceName) int {
		return cmp.Or(s.aside[a].since.Compare(s.aside[b].since), a.Compare(b))
	})
	for pairs := 0; len(order) > 0; order = order[1:] {
		if _, waits := s.aside[order[0]]; !waits {
			continue
		}
		group := s.sharing(index, order[0])
		size := 0
		for name := range group {
			size += s.pairs(name)
		}
		if pairs > 0 && pairs+size > costlyAtOnce {
			return
		}
		pairs += size
		for name := range group {
			delete(s.aside, name)
		}
	}
}

// anyFull reports whether the next Apply of some family compares everything. The caller
// holds mu.
func (s *store) anyFull() bool {
	for _, f := range s.families {
		if f.full {
			return true
		}
	}
	return false
}

// costly are the dirty Services of the namespaces with the largest changes, those that the
// kernel has rejected, and those that share an address or a node port with them. The caller
// holds mu.
func (s *store) costly(index map[netip.AddrPort][]dataplane.ServiceName) map[dataplane.ServiceName]struct{} {
	pairs := map[string]int{} // by namespace
	for name := range s.dirty {
		pairs[name.Namespace] += s.pairs(name)
	}
	small, sum := map[string]bool{}, 0
	for _, namespace := range slices.SortedFunc(maps.Keys(pairs), func(a, b string) int { return pairs[a] - pairs[b] }) {
		sum += pairs[namespace]
		small[namespace] = pairs[namespace] <= smallOfNamespace && sum <= smallInAll
	}
	var costly []dataplane.ServiceName
	for name := range s.dirty {
		if !small[name.Namespace] || s.rejected(name) {
			costly = append(costly, name)
		}
	}
	return s.sharing(index, costly...)
}

// byAddress lists the dirty Services by their addresses and node ports. The caller holds mu.
func (s *store) byAddress() map[netip.AddrPort][]dataplane.ServiceName {
	index := map[netip.AddrPort][]dataplane.ServiceName{}
	for name := range s.dirty {
		for _, key := range s.addressesOf(name) {
			index[key] = append(index[key], name)
		}
	}
	return index
}

// sharing returns the named Services, and the dirty ones that share an address or a node port
// with one of them, or with one that does: what moves from one Service to another moves in one
// sync. The caller holds mu.
func (s *store) sharing(index map[netip.AddrPort][]dataplane.ServiceName, names ...dataplane.ServiceName) map[dataplane.ServiceName]struct{} {
	out := map[dataplane.ServiceName]struct{}{}
	seen := map[netip.AddrPort]struct{}{}
	for queue := names; len(queue) > 0; {
		name := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if _, again := out[name]; again {
			continue
		}
		out[name] = struct{}{}
		for _, key := range s.addressesOf(name) {
			if _, again := seen[key]; !again {
				seen[key] = struct{}{}
				queue = append(queue, index[key]...)
			}
		}
	}
	return out
}

// rejected reports whether the kernel has rejected a Service. The caller holds mu.
func (s *store) rejected(name dataplane.ServiceName) bool {
	for _, f := range s.families {
		if _, found := f.refused[name]; found {
			return true
		}
	}
	return false
}

// pairs is how large a change is: the Service as it is programmed or as it will be, whichever
// is larger. The caller holds mu.
func (s *store) pairs(name dataplane.ServiceName) int {
	desired, programmed := 1, 0
	if e := s.services[name]; e != nil && e.rules != nil {
		size := v1alpha1.SizeOf(&e.rules.Spec)
		desired += size.Ports + size.Combinations()
	}
	for _, f := range s.families {
		svc := f.services[name]
		if svc == nil {
			continue
		}
		programmed += len(svc.Ports) * (1 + len(svc.ExternalIPs) + len(svc.LoadBalancerIPs) + len(svc.SourceRanges)*(1+len(svc.LoadBalancerIPs)))
		for i := range svc.Ports {
			programmed += len(svc.Ports[i].Cluster) + len(svc.Ports[i].Local)
		}
	}
	return max(desired, programmed)
}

// addressesOf lists the addresses of a Service, with port 0, and its node ports, without an
// address: those that are programmed and those that will be. The caller holds mu.
func (s *store) addressesOf(name dataplane.ServiceName) []netip.AddrPort {
	var out []netip.AddrPort
	address := func(a netip.Addr) { out = append(out, netip.AddrPortFrom(a, 0)) }
	nodePort := func(port uint16) {
		if port != 0 {
			out = append(out, netip.AddrPortFrom(netip.Addr{}, port))
		}
	}
	for _, f := range s.families {
		if svc := f.services[name]; svc != nil {
			for _, a := range slices.Concat([]netip.Addr{svc.ClusterIP}, svc.ExternalIPs, svc.LoadBalancerIPs) {
				address(a)
			}
			nodePort(svc.HealthCheckNodePort)
			for i := range svc.Ports {
				nodePort(svc.Ports[i].NodePort)
			}
		}
	}
	if e := s.services[name]; e != nil && e.rules != nil {
		spec := &e.rules.Spec
		for _, text := range slices.Concat(spec.ClusterIPs, spec.ExternalIPs, spec.LoadBalancerIPs) {
			if a, err := netip.ParseAddr(text); err == nil {
				address(a)
			}
		}
		nodePort(uint16(spec.HealthCheckNodePort)) //nolint:gosec // the API server admits ports only
		for i := range spec.Ports {
			nodePort(uint16(spec.Ports[i].NodePort)) //nolint:gosec // the API server admits ports only
		}
	}
	return out
}

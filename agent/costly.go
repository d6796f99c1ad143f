package agent

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/syncer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// What a sync writes at once between two that write everything, in pairs of a port with an
// endpoint, an address or a source range: a node takes about a tenth of a second for the
// latter. What exceeds it is costly and waits until the syncer has rested, so that one
// namespace's large Services do not delay the small changes of all others.
const (
	smallOfNamespace = 500
	smallInAll       = 2_000
)

// setCostlyAside decides what the next sync takes: all changes, or all but the costly ones.
// Changes that were set aside before are decided on again.
func (s *store) setCostlyAside(all bool) syncer.Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, force := range s.aside {
		s.dirty[name] = s.dirty[name] || force
	}
	s.aside = map[dataplane.ServiceName]bool{}
	if !s.complete || s.anyFull() || s.inAudit() || s.removal.wanted {
		return syncer.Light // the kernel is read as a whole, whatever has changed
	}
	costly := s.costly()
	switch {
	case len(costly) == 0:
		return syncer.Light
	case all:
		return syncer.Heavy
	}
	for name := range costly {
		s.aside[name] = s.dirty[name]
		delete(s.dirty, name)
	}
	return syncer.Left
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
// kernel has rejected, and those that share an address or a node port with them: what moves
// from one Service to another moves in one sync. The caller holds mu.
func (s *store) costly() map[dataplane.ServiceName]struct{} {
	pairs := map[string]int{} // by namespace
	for name := range s.dirty {
		pairs[name.Namespace] += s.pairs(name)
	}
	small, sum := map[string]bool{}, 0
	for _, namespace := range slices.SortedFunc(maps.Keys(pairs), func(a, b string) int { return pairs[a] - pairs[b] }) {
		sum += pairs[namespace]
		small[namespace] = pairs[namespace] <= smallOfNamespace && sum <= smallInAll
	}
	costly := map[dataplane.ServiceName]struct{}{}
	for name := range s.dirty {
		if !small[name.Namespace] || s.rejected(name) {
			costly[name] = struct{}{}
		}
	}
	if len(costly) > 0 && len(costly) < len(s.dirty) {
		s.addSharers(costly)
	}
	return costly
}

// addSharers adds the dirty Services that share an address or a node port with one of
// costly, or with one that is added. The caller holds mu.
func (s *store) addSharers(costly map[dataplane.ServiceName]struct{}) {
	sharers := map[netip.AddrPort][]dataplane.ServiceName{} // none of them costly so far
	for name := range s.dirty {
		if _, is := costly[name]; !is {
			for _, key := range s.addressesOf(name) {
				sharers[key] = append(sharers[key], name)
			}
		}
	}
	for queue := slices.Collect(maps.Keys(costly)); len(queue) > 0; {
		name := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, key := range s.addressesOf(name) {
			for _, other := range sharers[key] {
				if _, is := costly[other]; !is {
					costly[other] = struct{}{}
					queue = append(queue, other)
				}
			}
			delete(sharers, key)
		}
	}
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
		desired += size.Ports + size.Pairs()
	}
	for _, f := range s.families {
		svc := f.services[name]
		if svc == nil {
			continue
		}
		programmed += len(svc.Ports) * (1 + len(svc.ExternalIPs) + len(svc.LoadBalancerIPs) + len(svc.SourceRanges))
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

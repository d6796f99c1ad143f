package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Compare orders by address, port and protocol.
func (k Key) Compare(o Key) int {
	if c := k.Addr.Compare(o.Addr); c != 0 {
		return c
	}
	if c := int(k.Port) - int(o.Port); c != 0 {
		return c
	}
	return strings.Compare(string(k.Protocol), string(o.Protocol))
}

// strangers are the virtual servers that are not ours.
type strangers struct {
	keys map[Key]struct{}
	// addresses has one of them for each address.
	addresses map[netip.Addr]Key
}

func newStrangers() strangers {
	return strangers{keys: map[Key]struct{}{}, addresses: map[netip.Addr]Key{}}
}

func (s strangers) add(k Key) {
	s.keys[k] = struct{}{}
	if first, found := s.addresses[k.Addr]; !found || k.Compare(first) < 0 {
		s.addresses[k.Addr] = k
	}
}

// bars returns the one that stands in the way of a virtual server of ours: at
// its very place, or on an address that is to be bound, by which it would become
// ours.
func (s strangers) bars(p *plannedServer) (Key, bool) {
	if _, found := s.keys[p.Key]; found {
		return p.Key, true
	}
	if !p.bind {
		return Key{}, false
	}
	k, found := s.addresses[p.Key.Addr]
	return k, found
}

// resolved is what is wanted where not everything can be had.
type resolved struct {
	*wanted
	// conflicts say why a Service does not have all that it asks for.
	conflicts map[dataplane.ServiceName]string
	// contested are the virtual servers that several Services ask for.
	contested map[Key]struct{}
	// claims are the precedences of the Services that have these.
	claims map[dataplane.ServiceName]dataplane.Precedence
	// base is what other Services have that are not planned anew, replaced names those
	// that are. Nil: there are no others.
	base     *wanted
	replaced map[dataplane.ServiceName]struct{}
}

func newResolved(c *config) *resolved {
	return &resolved{
		wanted: newWanted(c), conflicts: map[dataplane.ServiceName]string{}, contested: map[Key]struct{}{},
		claims: map[dataplane.ServiceName]dataplane.Precedence{},
	}
}

// has returns a virtual server that another Service has.
func (r *resolved) has(k Key) (ownedServer, bool) {
	if s, found := r.needs.servers[k]; found {
		return s, true
	}
	if r.base == nil {
		return ownedServer{}, false
	}
	s, found := r.base.needs.servers[k]
	_, replaced := r.replaced[s.owner]
	return s, found && !replaced
}

// planOf returns the plan of a Service that has a virtual server.
func (r *resolved) planOf(name dataplane.ServiceName) *servicePlan {
	if plan := r.services[name]; plan != nil || r.base == nil {
		return plan
	}
	return r.base.services[name]
}

// planAll plans all Services, each but for what it cannot have: where a virtual
// server of others stands, or one of a Service that precedes.
func (c *config) planAll(services map[dataplane.ServiceName]*dataplane.Service, others strangers) *resolved {
	out := newResolved(c)
	for _, svc := range slices.SortedFunc(maps.Values(services), (*dataplane.Service).ComparePrecedence) {
		plan := c.planService(svc, nil)
		out.plan(svc, &plan, others)
	}
	for k := range out.contested {
		if svc := services[out.needs.servers[k].owner]; svc != nil {
			out.claims[svc.Name] = svc.Precedence
		}
	}
	return out
}

// plan adds a Service, whose plan is that of all that it asks for.
func (r *resolved) plan(svc *dataplane.Service, plan *servicePlan, others strangers) {
	barred := map[Key]struct{}{}
	var reasons []string
	var early []setEntry
	for i := range plan.servers {
		s := &plan.servers[i]
		if k, found := others.bars(s); found {
			reasons = append(reasons, strangerText(s.Key, k))
			for _, k := range r.config.nodePortOf(svc, s.Key) {
				barred[k] = struct{}{}
			}
		} else if held, found := r.has(s.Key); found {
			r.contested[s.Key] = struct{}{}
			reasons = append(reasons, fmt.Sprintf("%s %s %s already; one of the two must give up the address or the port", s.Key, v1alpha1.ServedForAnother, held.owner))
			early = append(early, r.acceptEarly(held)...)
		} else {
			continue
		}
		barred[s.Key] = struct{}{}
	}
	if len(barred) > 0 {
		rest := r.config.planService(svc, barred)
		plan = &rest
		plan.enter(early...)
		r.conflicts[svc.Name] = strings.Join(slices.Compact(reasons), "; ")
	}
	r.set(svc.Name, plan)
}

// nodePortOf are all virtual servers of a NodePort of a Service, if k is one of them.
// Where a stranger is in the way of one, the NodePort goes as a whole: in the ipsets
// its port stands for all addresses, so the stranger would look ours and have its
// packets masqueraded.
func (c *config) nodePortOf(svc *dataplane.Service, k Key) []Key {
	if !slices.Contains(c.nodePortIPs, k.Addr) ||
		!slices.ContainsFunc(svc.Ports, func(p dataplane.Port) bool { return p.NodePort == k.Port && p.Protocol == k.Protocol }) {
		return nil
	}
	var out []Key
	for _, ip := range c.nodePortIPs {
		out = append(out, Key{ip, k.Port, k.Protocol})
	}
	return out
}

// acceptEarly keeps what is sent to a load-balancer address of policy Local from
// being masqueraded for the NodePort that another Service has lost there: in the
// ipsets its port stands for all addresses, and they are asked before load-balancer
// addresses are accepted. External addresses are accepted before.
func (r *resolved) acceptEarly(has ownedServer) []setEntry {
	if !r.config.acceptsLocal(r.planOf(has.owner), has.Key) {
		return nil
	}
	return []setEntry{{r.config.set(setExternalIPLocal), keyEntry(has.Key)}}
}

func strangerText(want, stands Key) string {
	command := "ipvsadm -D " + map[v1alpha1.Protocol]string{v1alpha1.ProtocolTCP: "-t", v1alpha1.ProtocolUDP: "-u", v1alpha1.ProtocolSCTP: "--sctp-service"}[stands.Protocol] +
		" " + netip.AddrPortFrom(stands.Addr, stands.Port).String()
	if want == stands {
		return fmt.Sprintf("%s is not served: a virtual server that nodeproxy has not made stands there; remove it (%s) or take the address or port from the Service", want, command)
	}
	return fmt.Sprintf("%s is not served: on its address stands the virtual server %s that nodeproxy has not made; remove it (%s) or take the address from the Service", want, stands, command)
}

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
}

// planAll plans all Services, each but for what it cannot have: where a virtual
// server of others stands, or the one of a Service whose name comes before.
func (c *config) planAll(services map[dataplane.ServiceName]*dataplane.Service, others strangers) *resolved {
	out := &resolved{wanted: newWanted(c), conflicts: map[dataplane.ServiceName]string{}, contested: map[Key]struct{}{}}
	for _, name := range slices.SortedFunc(maps.Keys(services), dataplane.ServiceName.Compare) {
		out.plan(services[name], others)
	}
	return out
}

// maxReductions is how often a Service is planned anew with less: first without
// addresses, then without NodePorts that are the same as its ports.
const maxReductions = 4

func (r *resolved) plan(svc *dataplane.Service, others strangers) {
	name := svc.Name
	var reasons []string
	for range maxReductions {
		plan := r.config.planService(svc)
		var barred []Key
		for i := range plan.servers {
			s := &plan.servers[i]
			if k, found := others.bars(s); found {
				barred, reasons = append(barred, s.Key), append(reasons, strangerText(s.Key, k))
			} else if held, found := r.needs.servers[s.Key]; found {
				r.contested[s.Key] = struct{}{}
				barred, reasons = append(barred, s.Key), append(reasons, fmt.Sprintf("%s is served for Service %s already; one of the two must give up the address or the port", s.Key, held.owner))
			}
		}
		if len(barred) == 0 {
			r.set(name, &plan)
			break
		}
		svc = without(svc, barred)
	}
	if len(reasons) > 0 {
		r.conflicts[name] = strings.Join(slices.Compact(reasons), "; ")
	}
}

func strangerText(want, stands Key) string {
	command := "ipvsadm -D " + map[v1alpha1.Protocol]string{v1alpha1.ProtocolTCP: "-t", v1alpha1.ProtocolUDP: "-u", v1alpha1.ProtocolSCTP: "--sctp-service"}[stands.Protocol] +
		" " + netip.AddrPortFrom(stands.Addr, stands.Port).String()
	if want == stands {
		return fmt.Sprintf("%s is not served: a virtual server that nodeproxy has not made stands there; remove it (%s) or take the address or port from the Service", want, command)
	}
	return fmt.Sprintf("%s is not served: on its address stands the virtual server %s that nodeproxy has not made; remove it (%s) or take the address from the Service", want, stands, command)
}

// without is a Service without some of its virtual servers. A NodePort goes as a
// whole: its port stands for all addresses in the ipsets.
func without(svc *dataplane.Service, barred []Key) *dataplane.Service {
	out := *svc
	out.Ports = slices.Clone(svc.Ports)
	for i := range out.Ports {
		p := &out.Ports[i]
		p.Lost = slices.Clone(p.Lost)
		for _, k := range barred {
			switch {
			case k.Protocol != p.Protocol:
			case k.Port == p.Port && p.Serves(k.Addr) && hasAddress(svc, k.Addr):
				p.Lost = append(p.Lost, k.Addr)
			case k.Port == p.NodePort:
				p.NodePort = 0
			}
		}
	}
	return &out
}

func hasAddress(svc *dataplane.Service, a netip.Addr) bool {
	return svc.ClusterIP == a || slices.Contains(svc.ExternalIPs, a) || slices.Contains(svc.LoadBalancerIPs, a)
}

package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// conflict is why a Service does not have everything that it asks for.
type conflict struct {
	engine.Conflict
	// lost are the virtual servers that another Service has.
	lost []Key
}

// conflicts are those of all Services.
type conflicts struct {
	of map[dataplane.ServiceName]*conflict
	// losers are the Services that have lost a virtual server to another one.
	losers map[Key]map[dataplane.ServiceName]struct{}
}

// set replaces the conflict of a Service; nil: it has none.
func (c *conflicts) set(name dataplane.ServiceName, now *conflict) {
	if previous := c.of[name]; previous != nil {
		for _, k := range previous.lost {
			if delete(c.losers[k], name); len(c.losers[k]) == 0 {
				delete(c.losers, k)
			}
		}
	}
	if now == nil {
		delete(c.of, name)
		return
	}
	c.of[name] = now
	for _, k := range now.lost {
		if c.losers[k] == nil {
			c.losers[k] = map[dataplane.ServiceName]struct{}{}
		}
		c.losers[k][name] = struct{}{}
	}
}

// resolved is the desired state after conflicts are resolved.
type resolved struct {
	*desired
	conflicts conflicts
	// base has the Services that are not planned again; replaced names those that are.
	// It is nil if all Services are planned.
	base     *desired
	replaced map[dataplane.ServiceName]struct{}
}

func newResolved(c *config) *resolved {
	return &resolved{desired: newDesired(c), conflicts: conflicts{map[dataplane.ServiceName]*conflict{}, map[Key]map[dataplane.ServiceName]struct{}{}}}
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

// planAll plans all Services, without the virtual servers that are blocked by unmanaged ones
// or belong to a Service of higher precedence.
func (c *config) planAll(services map[dataplane.ServiceName]*dataplane.Service, others unmanaged) *resolved {
	out := newResolved(c)
	for _, svc := range slices.SortedFunc(maps.Values(services), (*dataplane.Service).ComparePrecedence) {
		plan := c.planService(svc, nil)
		out.plan(svc, &plan, others)
	}
	return out
}

// plan adds a Service, given the plan of everything that it asks for.
func (r *resolved) plan(svc *dataplane.Service, plan *servicePlan, others unmanaged) {
	barred := sets.Set[Key]{}
	var lack conflict
	var reasons []string
	var early []setEntry
	var met []Key // by unmanaged ones
	for i := range plan.servers {
		s := &plan.servers[i]
		reason := ""
		if k, found := others.bars(s); found {
			reason = unmanagedText(s.Key, k)
			met = append(met, s.Key)
		} else if actual, found := r.has(s.Key); found {
			lack.lost = append(lack.lost, s.Key)
			reason = fmt.Sprintf("%s %s %s already; one of the two must give up the address or the port", s.Key, v1alpha1.ServedForAnother, actual.owner)
			// Otherwise packets to a load-balancer address under policy Local are masqueraded for the
			// NodePort that another Service has lost there: in the ipsets its port applies to all
			// addresses, and they are matched before load-balancer addresses are accepted. External
			// addresses are accepted earlier.
			if r.config.acceptsLocal(r.planOf(actual.owner), actual.Key) {
				early = append(early, setEntry{r.config.set(setExternalIPLocal), keyEntry(actual.Key)})
			}
		} else {
			continue
		}
		barred[s.Key] = struct{}{}
		if len(reasons) < dataplane.MaxExamples {
			reasons = append(reasons, reason)
		}
	}
	if len(barred) > 0 {
		if more := len(barred) - len(reasons); more > 0 {
			reasons = append(reasons, fmt.Sprintf("and %d more", more))
		}
		r.config.barNodePorts(svc, met, barred)
		rest := r.config.planService(svc, barred)
		plan = &rest
		plan.enter(early...)
		lack.Reason, lack.Served = strings.Join(reasons, "; "), r.config.without(svc, barred)
		r.conflicts.set(svc.Name, &lack)
	}
	r.set(svc.Name, plan)
}

// barNodePorts bars all virtual servers of a NodePort if an unmanaged one blocks one of them: in
// the ipsets the port applies to all addresses, so the unmanaged one would look like ours and
// its packets would be masqueraded.
func (c *config) barNodePorts(svc *dataplane.Service, met []Key, barred sets.Set[Key]) {
	ports := sets.Set[Key]{} // without address
	for _, k := range met {
		if _, found := slices.BinarySearchFunc(c.nodePortIPs, k.Addr, netip.Addr.Compare); found {
			ports[Key{Port: k.Port, Protocol: k.Protocol}] = struct{}{}
		}
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if _, found := ports[Key{Port: p.NodePort, Protocol: p.Protocol}]; found {
			for _, ip := range c.nodePortIPs {
				barred[Key{ip, p.NodePort, p.Protocol}] = struct{}{}
			}
		}
	}
}

// without returns a Service as it is served without some virtual servers.
func (c *config) without(svc *dataplane.Service, barred sets.Set[Key]) *dataplane.Service {
	out := *svc
	out.Ports = slices.Clone(svc.Ports)
	for i := range out.Ports {
		p := &out.Ports[i]
		isBarred := func(a netip.Addr, port uint16) bool {
			return barred.Has(Key{a, port, p.Protocol})
		}
		lost := slices.Clone(p.Lost)
		for d := range svc.DestinationsOf(p) {
			if d.Kind != dataplane.NodePort && isBarred(d.Address, d.Number) {
				lost = append(lost, d.Address)
			}
		}
		p.Lost = sortedAddrs(lost)
		if !slices.ContainsFunc(c.nodePortIPs, func(a netip.Addr) bool { return !isBarred(a, p.NodePort) }) {
			p.NodePort = 0
		}
	}
	return &out
}

// acceptsLocal reports whether a plan has a load-balancer address under policy Local.
func (c *config) acceptsLocal(plan *servicePlan, k Key) bool {
	_, found := slices.BinarySearchFunc(plan.entries, setEntry{c.set(setLoadBalancerLocal), keyEntry(k)}, setEntry.compare)
	return found
}

func unmanagedText(want, found Key) string {
	option := map[v1alpha1.Protocol]string{v1alpha1.ProtocolTCP: "-t", v1alpha1.ProtocolUDP: "-u", v1alpha1.ProtocolSCTP: "--sctp-service"}[found.Protocol]
	command := fmt.Sprintf("ipvsadm -D %s %s", option, netip.AddrPortFrom(found.Addr, found.Port))
	if want == found {
		return fmt.Sprintf("%s is not served: another program has this virtual server; remove it (%s) or change the Service's address or port", want, command)
	}
	return fmt.Sprintf("%s is not served: another program has the virtual server %s on its address; remove it (%s) or change the Service's address", want, found, command)
}

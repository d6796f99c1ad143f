package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/health"
)

// newChecks returns what serves health-check node ports, for each family.
func (a *Agent) newChecks() map[dataplane.Family]*health.Checks {
	checks := map[dataplane.Family]*health.Checks{}
	for _, family := range a.fanout.Families() {
		network := "tcp4"
		if family == dataplane.IPv6 {
			network = "tcp6"
		}
		checks[family] = health.NewChecks(health.ChecksOptions{
			Network: network, Clock: a.options.Clock, Log: a.log, Changed: a.pokeStatus,
			Healthy: func() bool { return health.ServesTraffic(a.proxyState()) },
		})
	}
	return checks
}

// runChecks serves health-check node ports until ctx is done: while we have the
// turn.
func (a *Agent) runChecks(ctx context.Context) {
	var wg sync.WaitGroup
	for _, c := range a.checks {
		wg.Go(func() { c.Run(ctx) })
	}
	wg.Wait()
}

// updateChecks has health checks answer for what the kernel holds now. Those of
// a family whose Apply failed go on as they are.
func (a *Agent) updateChecks(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result]) {
	turn := a.turnContext() // before mayWrite: it may end, and the next one begin, meanwhile
	if !a.mayWrite() {
		return // the turn was lost meanwhile: the next one begins with nothing
	}
	for family, c := range a.checks {
		if outcomes[family].Err != nil {
			continue
		}
		wanted, nodePorts, err := a.store.healthChecks(family)
		if len(nodePorts.Ranges) == 0 && err == nil {
			c.Set(turn, wanted, nil)
			continue
		}
		c.Set(turn, wanted, func() ([]netip.Addr, error) {
			if err != nil {
				return nil, err
			}
			local, err := dataplane.InterfaceAddresses()
			return answering(nodePorts, local), err
		})
	}
}

// answering returns those of the node's addresses that health checks answer on.
// One of a link alone has no place without the name of its interface, and no load
// balancer asks there.
func answering(nodePorts dataplane.NodePorts, local []netip.Addr) []netip.Addr {
	local = slices.DeleteFunc(slices.Clone(local), func(a netip.Addr) bool {
		return a.Is6() && a.IsLinkLocalUnicast() || !nodePorts.InRange(a)
	})
	slices.SortFunc(local, netip.Addr.Compare)
	return slices.Compact(local)
}

// checkTroubles say, for the status, which health-check node ports cannot be
// opened.
func (a *Agent) checkTroubles() []string {
	var troubles []string
	for _, family := range a.fanout.Families() {
		troubles = append(troubles, a.checks[family].Troubles()...)
	}
	if summary := health.Summary(troubles); summary != "" {
		return []string{summary}
	}
	return nil
}

// proxyState is what the health of the proxy depends on. It never waits for the store.
func (a *Agent) proxyState() health.State {
	out := a.store.health()
	out.Started = a.started
	return out
}

// progressing lets the sync loop know of each step of what it runs, so that the
// kubelet does not take a long one for a stuck one.
func (a *Agent) progressing(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error { return do(dataplane.WithProgress(ctx, a.loop.Progress)) }
}

// health is the store's part of what the health of the proxy depends on. While the store is
// busy, such as with a Service at the limits, it is what was last known: nobody who asks
// waits, and a change that waits for the kernel ages all the same.
func (s *store) health() health.State {
	if s.mu.TryLock() {
		defer s.mu.Unlock()
		now := s.currentHealth()
		s.lastHealth.Store(&now)
		return now
	}
	out := *s.lastHealth.Load()
	out.Now = s.clock.Now()
	return out
}

// currentHealth is health. The caller holds mu.
func (s *store) currentHealth() health.State {
	out := health.State{
		Now: s.clock.Now(), Families: make(map[string]health.FamilyState, len(s.families)),
		Eligible: s.eligible(), Withheld: s.restored.stale(),
	}
	for family, f := range s.families {
		if f.lacking() && s.someDone() {
			continue // as with kube-proxy, the node serves the other one
		}
		out.Families[string(family)] = health.FamilyState{LastUpdated: f.lastUpdated, OldestPending: s.waits(f)}
	}
	return out
}

// lacking reports whether the node cannot program the family, as far as is known
// for good.
func (f *familyState) lacking() bool { return errors.Is(f.err, dataplane.ErrUnsupported) }

// someDone reports whether the node programs some family. The caller holds mu.
func (s *store) someDone() bool {
	for _, f := range s.families {
		if f.done {
			return true
		}
	}
	return false
}

// noteCheck notes whether a Service has a health-check node port.
func (f *familyState) noteCheck(name dataplane.ServiceName, svc *dataplane.Service) {
	if svc != nil && svc.HealthCheckNodePort != 0 {
		f.checked[name] = svc
	} else {
		delete(f.checked, name)
	}
}

// healthChecks returns what a family's health checks answer after a success, and
// on which addresses.
func (s *store) healthChecks(family dataplane.Family) (map[health.ServiceKey]health.Check, dataplane.NodePorts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.families[family]
	out := make(map[health.ServiceKey]health.Check, len(f.checked))
	if !f.done || s.current == nil {
		return out, dataplane.NodePorts{}, nil
	}
	for name, svc := range f.checked {
		key := health.ServiceKey(name)
		check := health.Check{Port: svc.HealthCheckNodePort, LocalEndpoints: svc.LocalReady}
		if r, refused := f.refused[name]; refused && !r.reduced {
			// The kernel holds the former rules: connections go where those lead, if
			// it holds any, and that is worth no more than the fewer endpoints.
			check.LocalEndpoints = min(check.LocalEndpoints, f.answered[key].LocalEndpoints)
		}
		out[key] = check
	}
	f.answered = out
	node := s.node(family)
	nodePorts, err := dataplane.NodePortsOf(family, &node)
	return out, nodePorts, err
}

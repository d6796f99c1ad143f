package agent

import (
	"context"
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
		wanted, nodePorts, err := a.store.HealthChecks(family)
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
	out := a.store.Health()
	out.Started = a.started
	return out
}

// progressing lets the sync loop know of each step of what it runs, so that the
// kubelet does not take a long one for a stuck one.
func (a *Agent) progressing(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error { return do(dataplane.WithProgress(ctx, a.loop.Progress)) }
}

package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/health"
	"github.com/nodeproxy-io/nodeproxy/agent/ownership"
)

// servers are the agent's ports: those of the proxy serve while the agent owns the node's proxy
// rules, the kubelet's always.
type servers struct{ kubelet, health, metrics *health.Server }

// newServers returns servers that do not run yet.
func (a *Agent) newServers(instance string) servers {
	answering := func(handler http.Handler) http.Handler { // with this agent's instance
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(ownership.InstanceHeader, instance)
			handler.ServeHTTP(w, r)
		})
	}
	server := func(name, address, flag string) *health.Server {
		return &health.Server{
			Name: name, Address: address, Flag: flag,
			Clock: a.options.Clock, Log: a.log, Holder: a.holder, Changed: a.pokeStatus,
		}
	}
	s := servers{
		kubelet: server("probes for the kubelet", a.options.ProbeAddress, "--health-probe-bind-address"),
		health:  server("health of the proxy", a.options.ProxyHealthAddress, "--proxy-health-bind-address"),
		metrics: server("metrics", a.options.MetricsAddress, "--metrics-bind-address"),
	}
	s.kubelet.Handler = health.KubeletHandler(a.loop.Overdue, a.unready, a.metrics.Handler())
	s.health.Handler = answering(health.ProxyHandler(a.proxyState, a.metrics.Proxy.Answered))
	s.metrics.Handler = answering(health.MetricsHandler(a.proxyMode, a.metrics.Handler()))
	return s
}

// portWarnings are, for the status, the ports that could not be opened.
func (a *Agent) portWarnings() []string {
	var checks []string
	for _, family := range a.fanout.Families() {
		checks = append(checks, a.checks[family].Problems()...)
	}
	warnings := slices.Concat(a.servers.kubelet.Problems(), a.servers.health.Problems(), a.servers.metrics.Problems())
	if summary := health.Summary(checks); summary != "" {
		warnings = append(warnings, summary)
	}
	return warnings
}

// holder names the process that has an address; empty: unknown.
func (a *Agent) holder(address string) string {
	at, ok := bound(address)
	if !ok || a.options.Sockets == nil {
		return ""
	}
	l, err := a.options.Sockets.Holder(at)
	switch {
	case err != nil:
		return err.Error()
	case l == nil:
		return "a socket that does not listen uses it"
	default:
		return fmt.Sprintf("a process with uid %d listens there", l.UID)
	}
}

// bound is the address that a flag binds; without a host that of both IP families.
func bound(address string) (netip.AddrPort, bool) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, false
	}
	if host != "" {
		at, err := netip.ParseAddrPort(address)
		return at, err == nil
	}
	number, err := strconv.ParseUint(port, 10, 16)
	return netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(number)), err == nil
}

// newChecks returns the health-check node ports of each family.
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

// runChecks serves health-check node ports until ctx is done.
func (a *Agent) runChecks(ctx context.Context) {
	var wg sync.WaitGroup
	for _, c := range a.checks {
		wg.Go(func() { c.Run(ctx) })
	}
	wg.Wait()
}

// updateChecks has health checks answer for the rules in the kernel. Those of a family whose
// Apply failed stay.
func (a *Agent) updateChecks(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result]) {
	owned := a.owner.Context() // before MayWrite: it may end, and the next one begin, meanwhile
	if !a.owner.MayWrite() {
		return // the next ownership begins with none
	}
	for family, c := range a.checks {
		if outcomes[family].Err != nil {
			continue
		}
		answers, nodePorts, err := a.store.UpdateHealthChecks(family)
		if len(nodePorts.Ranges) == 0 && err == nil {
			c.Set(owned, answers, nil)
			continue
		}
		c.Set(owned, answers, func() ([]netip.Addr, error) {
			if err != nil {
				return nil, err
			}
			local, err := dataplane.InterfaceAddresses()
			return answering(nodePorts, local), err
		})
	}
}

// answering returns the addresses of the node that health checks answer on. Link-local ones
// need the name of an interface, and no load balancer uses them.
func answering(nodePorts dataplane.NodePorts, local []netip.Addr) []netip.Addr {
	local = slices.DeleteFunc(slices.Clone(local), func(a netip.Addr) bool {
		return a.Is6() && a.IsLinkLocalUnicast() || !nodePorts.InRange(a)
	})
	slices.SortFunc(local, netip.Addr.Compare)
	return slices.Compact(local)
}

// proxyState is the health of the proxy. It never waits for the store.
func (a *Agent) proxyState() health.State {
	out := a.store.Health()
	out.Started = a.started
	return out
}

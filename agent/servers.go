package agent

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nodeproxy-io/nodeproxy/agent/health"
	"github.com/nodeproxy-io/nodeproxy/agent/ownership"
)

// answering lets whoever asks our ports know which agent answers.
func (a *Agent) answering(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(ownership.InstanceHeader, a.instance)
		handler.ServeHTTP(w, r)
	})
}

// servers are the agent's ports. Those of the proxy serve while we have the turn,
// the kubelet's always.
type servers struct{ kubelet, health, metrics *health.Server }

// newServers returns servers that do not run yet.
func (a *Agent) newServers() servers {
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
	s.health.Handler = a.answering(health.ProxyHandler(a.proxyState, a.metrics.Proxy.Answered))
	s.metrics.Handler = a.answering(health.MetricsHandler(a.proxyMode, a.metrics.Handler()))
	return s
}

// portTroubles say, for the status, which of the agent's ports others have.
func (a *Agent) portTroubles() []string {
	return slices.Concat(a.servers.kubelet.Troubles(), a.servers.health.Troubles(), a.servers.metrics.Troubles())
}

// holder says who has an address that cannot be bound; empty: it is not known.
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
		return "a socket that does not listen has it"
	default:
		return fmt.Sprintf("a process with uid %d listens there", l.UID)
	}
}

// bound is the address that the flag of a server binds; without a host all of
// both IP families.
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

// Package userspace proxies connections itself: the kernel redirects a Service's connections to the
// agent, which chooses an endpoint and tries another one where that does not accept.
//
// The kernel's rules are those of the mode that runs on the node, with the proxy's listener as the
// only endpoint of a port. So they decide what they always decide: at which addresses a Service
// answers, to whom, and by which traffic policy.
//
//   - redirect.go: the Dataplane, which has the kernel redirect connections
//   - proxy.go: the Proxy, and a Service as the kernel serves it
//   - table.go: which port of a Service a connection is for
//   - balance.go, affinity.go: which endpoint it gets
//   - failing.go: which endpoints do not accept, and why
//   - limits.go: how many connections there may be
//   - metrics.go: what is counted
//   - engine_linux.go, worker_linux.go: the event loops; tcp_linux.go, splice_linux.go: connections;
//     udp_linux.go: UDP clients; socket_linux.go: system calls
//   - engine_other.go: connections on other operating systems
package userspace

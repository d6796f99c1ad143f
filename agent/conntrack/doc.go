// Package conntrack applies the settings of connection tracking, reports its statistics, and
// removes stale flows.
//
// As long as datagrams arrive, the kernel translates a flow like its first datagram: a client
// that keeps its socket continues to send to an endpoint that is gone, or to the Service's
// address itself if there was no endpoint yet. After every change of rules, flows that
// contradict them are therefore deleted, and their next datagram meets the current rules.
//
// SCTP and TCP end their connections themselves, with one exception: the kernel keeps the
// translation of the first packet of a TCP connection for two minutes, even without an answer.
// A client that connects before its Service is programmed gets no answer until then, and
// neither does its next connection from that port. TCP connections without an answer are
// therefore deleted too, and no others. Only flows of the default zone are deleted: other
// zones belong to other programs.
//
//   - conntrack.go: a flow, the table, and why a flow is stale
//   - tuner.go, settings.go, sysctls.go: the settings; statistics.go: how full the table is
//   - cleaner.go: when stale flows are removed; plan.go, state.go: which
//   - kernel.go, kernel_messages.go: the kernel's table, by netlink
package conntrack

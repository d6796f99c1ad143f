// Package nftables programs Services in one table of nf_tables for each IP family. No chain, rule
// or set belongs to a Service: a map of verdicts decides what happens to a destination and how many
// endpoints it has (goto cluster-3), and a map of data has the endpoint for a destination and an
// index. The chains exist once for each number of endpoints, so that a change of a Service changes
// elements only.
//
// The desired state; pure:
//
//   - config.go: what the rules depend on besides Services
//   - layout.go: the sets, maps, chains and rules of the table
//   - plan.go: the destinations of one Service
//   - elements.go: the elements of a destination
//
// What the kernel has, and how it differs:
//
//   - read.go: the table as a listing, and as a state; listed.go: the elements of a listing
//   - dump.go: when an interrupted listing counts
//   - state.go: a state, and an update of it; counts.go: what there is of it
//   - compare.go: compares a listing to the desired state; pure
//   - retain.go: what a comparison may not change; pure
//   - audit.go: compares kube-proxy's table to the desired state, by what becomes of packets
//   - journal.go: what events report; suspects.go: compares and repairs only that
//   - contest.go: which Service has a destination that several ask for; pure
//
// What changes the kernel:
//
//   - dataplane.go: the Dataplane; apply.go and full.go: the operations of package engine
//   - replace.go: a new table in place of one of another layout
//   - former.go: removes kube-proxy's table, and ours beside another proxy
//   - report.go: findings
//   - observe.go: what other programs have changed, and the addresses of the node
//
// The kernel itself:
//
//   - kernel_linux.go: opens the kernel; model.go: stands in for it
//   - package nft: messages, listings and events
//   - package kubeproxy: the table of kube-proxy
//   - declaration.go: the mode
//
// # The table's owner
//
// From Linux 6.9 on, the table belongs to the agent's socket, and persists: the kernel rejects
// changes by other programs with EPERM, "nft flush ruleset" leaves the table, and it stays when the
// agent ends. The next agent takes it over by one message. Between the two, any program can change
// it. The kernel sends no event about what it rejects, so the status cannot name the program that
// tried. A table without an owner is deleted and made anew once. On older kernels changes are
// repaired as soon as events report them, and the status names the program.
//
// # Differences from kube-proxy's mode nftables
//
//   - NodePorts answer on the addresses that interfaces of the node have, and follow these. As in
//     kube-proxy, they never answer on loopback addresses: that takes the sysctl route_localnet,
//     which lets neighbors send to 127.0.0.0/8, and so another rule against them.
//   - A client with session affinity keeps its endpoint for each destination. kube-proxy's keeps
//     one for all addresses of a Service port. The two only differ for a client that uses several.
//     When an endpoint of a Service with session affinity goes, all clients are listed.
//   - Nothing is dropped that is sent to an unused address of a ServiceCIDR.
//   - Packets that belong to no connection are dropped, unless nf_conntrack_tcp_be_liberal is on, as
//     in mode iptables: a client's reset could end a translated connection.
//   - A hairpin connection is one between equal addresses, whatever the port.
//   - Without endpoints, TCP is answered by a reset: the kernel limits the rate of ICMP errors.
package nftables

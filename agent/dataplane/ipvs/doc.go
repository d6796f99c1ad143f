// Package ipvs makes the kernel hold a Ruleset by IPVS virtual servers, the
// addresses of the device kube-ipvs0, ipsets and a fixed handful of iptables
// rules. Names of the device, the sets and the chains are kube-proxy's.
//
// The desired state; pure:
//
//   - config.go: what the plan depends on besides Services
//   - plan.go: what one Service needs; needs.go: what all of them need together
//   - conflicts.go: who has what several ask for, or what is others'
//   - sets.go, names.go: the ipsets and chains; rules.go: the rules
//   - graceful.go: which real servers drain, and when they have
//
// What the kernel has, and how it differs:
//
//   - state.go: virtual servers, real servers and ipsets
//   - evidence.go: which virtual servers are ours
//   - compare.go: compares it to the desired state; pure
//   - findings.go: says the difference to people; pure
//   - audit.go: Verify
//
// What changes the kernel:
//
//   - ipvs.go: the Dataplane, and what it knows of the kernel
//   - apply.go: Apply, by operations of package engine
//   - partial.go: writes changed Services alone
//   - full.go, full_sets.go: Apply, by reading and comparing everything
//   - write.go: writes a difference, in parts
//   - drain.go: looks at real servers that drain
//   - tune.go: what is set for the node as a whole
//   - retire.go: ends the mode while its connections go on
//   - cleanup.go: removes all that is ours
//
// What tells of changes by others:
//
//   - watch.go: what another program has changed
//   - addresses.go: the addresses of the node's interfaces
//
// The kernel itself:
//
//   - kernel.go: the interface Kernel; package ipvsmodel has a model of one
//   - netlink_linux.go: the Kernel of a node, of the parts that follow
//   - netlink_ipvs_linux.go: virtual and real servers; netlink_count_linux.go:
//     their number; netlink_number_linux.go: IPVS's number after its module was
//     loaded again; netlink_probe_linux.go: what the kernel can do
//   - netlink_device_linux.go: kube-ipvs0; netlink_yield_linux.go: the source of
//     connections to its addresses; netlink_events_linux.go: changed links and
//     addresses
//   - netlink_sets_linux.go: reads ipsets; netlink_setchange_linux.go: changes
//     them; setentry.go: their entries as bytes and as text
//   - sysctls_linux.go: sysctls
package ipvs

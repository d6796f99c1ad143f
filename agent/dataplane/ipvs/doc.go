// Package ipvs implements mode IPVS: it programs a Ruleset by virtual servers, addresses of
// the device kube-ipvs0, ipsets and a few fixed iptables rules. Names of the device, the sets
// and the chains are kube-proxy's.
//
// The desired state; pure:
//
//   - declaration.go: what the mode owns in the kernel; config.go: what the plan depends on besides
//     Services
//   - plan.go: what one Service needs; needs.go: what all of them need
//   - conflicts.go: Services that ask for the same, or for what is not ours
//   - sets.go: the ipsets and their entries; rules.go: the chains and rules
//
// The actual state, and how it differs:
//
//   - evidence.go: which virtual servers are ours
//   - compare.go: compares it to the desired state; pure
//   - audit.go: Verify, and the difference in sentences
//
// What changes the kernel:
//
//   - ipvs.go: the Dataplane, and how it reads the kernel
//   - apply.go: Apply, by operations of package engine
//   - partial.go: writes only changed Services
//   - full.go, full_sets.go: reads and compares everything
//   - write.go: writes a difference, in order
//   - drain.go: draining real servers
//   - tune.go: sysctls and timeouts
//   - cleanup.go: cleans up, at once or while connections continue
//
// What notices changes: watch.go.
//
// The kernel itself:
//
//   - kernel.go: the interface Kernel; package ipvsmodel has a model of it
//   - netlink_linux.go: the Kernel of a node, with sysctls
//   - netlink_ipvs_linux.go: virtual and real servers
//   - netlink_probe_linux.go: what the kernel can do
//   - netlink_device_linux.go: kube-ipvs0, addresses and their changes
//   - netlink_sets_linux.go: reads ipsets; netlink_setchange_linux.go: changes them
package ipvs

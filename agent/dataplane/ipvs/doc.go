// Package ipvs makes the kernel hold a Ruleset by IPVS virtual servers, the
// addresses of the device kube-ipvs0, ipsets and a fixed handful of iptables
// rules.
//
// Names of the device, the sets and the chains are kube-proxy's. Planning
// (plan.go, config.go, sets.go, rules.go) and comparing (compare.go) are pure;
// what reads and writes the kernel is apart from them: netlink.go implements
// Kernel, apply.go uses it.
package ipvs

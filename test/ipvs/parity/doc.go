// Package parity proves that nodeproxy-agent in mode IPVS makes the kernel hold what
// kube-proxy in mode ipvs makes it hold. Both run side by side in a kernel with IPVS,
// each in a network namespace of its own, under the same node name and with the same
// node addresses, on the objects of one API server. Package test/parity/beside runs
// them, in worlds of package test/parity/worlds. After each step both must have the
// same virtual and real servers, sets, addresses, rules, timeouts and sysctls, apart
// from what differences.go lists.
//
//	state.go        reads what the kernel holds, by ipvsadm, ipset, iptables-save, ip
//	compare.go      tells two states apart
//	differences.go  the differences that are wanted, each with its reason
//	pair.go         when the two are compared
//
// Nothing here uses code of the agent: what decides must not share the mistakes of
// what is judged.
package parity

// Package parity proves that nodeproxy-agent in mode IPVS programs the kernel like kube-proxy in
// mode ipvs. Both run side by side in a kernel with IPVS, each in its own network namespace,
// with the same node name and addresses, on the objects of one API server. Package
// test/parity/beside runs them, in worlds of package test/parity/worlds. After each step both
// must have the same virtual and real servers, sets, addresses, rules, timeouts and sysctls,
// apart from intended differences.
//
//	state.go        reads the kernel state, by ipvsadm, ipset, iptables-save, ip
//	compare.go      compares two states
//	differences.go  the intended differences, each with its reason
//	pair.go         when the two are compared
//
// Nothing here uses code of the agent, so that it does not share its mistakes.
package parity

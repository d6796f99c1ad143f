// Package parity proves that nodeproxy-agent writes the rules that kube-proxy
// writes. Both run side by side, each in a network namespace of its own, under
// the same node name and with the same node addresses, on the objects of one
// API server. Worlds of Services, EndpointSlices and settings are generated
// from a seed and changed step by step; after each step both must hold the same
// rules, apart from what differences.go lists.
//
//	rules           reads iptables-save and tells two sets of rules apart
//	worlds          draws worlds and makes an API server hold them
//	beside          runs the two proxies
//	differences.go  the differences that are wanted, each with its reason
//	pair.go         how the two start and when they are compared
//	report.go       tells whose a difference is, and what it is about
//
// Nothing here uses code of the agent: what decides must not share the mistakes
// of what is judged.
package parity

// Package parity proves that nodeproxy-agent writes the rules that kube-proxy
// writes. Both run side by side, each in its own network namespace, with the same
// node name and addresses, on the objects of one API server. Worlds of Services,
// EndpointSlices and settings are generated from a seed and changed step by step;
// after each step both must have the same rules, apart from what differences.go lists.
//
//	rules           reads iptables-save and compares two sets of rules
//	worlds          draws worlds and stores them in an API server
//	beside          runs the two proxies
//	differences.go  the intended differences, each with its reason
//	pair.go         how the two start and when they are compared
//	report.go       attributes and describes a difference
//
// Nothing here uses code of the agent, so that the judge does not share its mistakes.
//
// Environment variables, for mode IPVS (test/ipvs/parity) with the prefix IPVS_:
// PARITY_WORLDS (fixed worlds), PARITY_FRESH_WORLDS, PARITY_SEED (of the first fresh
// world), PARITY_STEPS (per world), PARITY_DEADLINE (seconds to agree after a step);
// in mode IPTables also PARITY_AUDIT_WORLDS (with Audit on kube-proxy's node).
package parity

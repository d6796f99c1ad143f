// Package beside runs kube-proxy and nodeproxy-agent on two nodes that are identical for a
// proxy, in the worlds of package worlds, for the comparisons of both modes: test/parity
// and test/ipvs/parity decide what is read and must be equal.
//
//	install.go  creates the cluster
//	pair.go     the two nodes and programs
//	proxy.go    one of the programs, which can be stopped, killed and frozen
//	reports.go  waits for reports of the agent
//	run.go      goes through worlds
package beside

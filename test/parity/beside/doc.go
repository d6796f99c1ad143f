// Package beside runs kube-proxy and nodeproxy-agent on two nodes that differ in
// nothing that matters to a proxy, in the worlds of package worlds, for the
// comparisons of both modes: test/parity and test/ipvs/parity say what is read and
// what has to be equal.
//
//	install.go  makes the cluster
//	pair.go     the two nodes and programs
//	proxy.go    one of the programs: it is stopped, killed, frozen
//	reports.go  waits for what the agent reports of a node
//	run.go      goes through worlds
package beside

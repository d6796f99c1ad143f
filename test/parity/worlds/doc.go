// Package worlds draws worlds of Services, EndpointSlices, proxy settings and
// facts of a node from a seed, changes them step by step, and stores them in an API
// server. Tests run kube-proxy and nodeproxy-agent side by side in them, in
// mode IPTables (New) or IPVS (NewIPVS).
//
//	settings.go   draws proxy settings and facts of the node
//	ipvs.go       draws what only mode IPVS has
//	world.go      draws Services
//	endpoints.go  draws EndpointSlices
//	change.go     draws changes of them
//	writer.go     stores a world in an API server
//	describe.go   describes a Service of it
package worlds

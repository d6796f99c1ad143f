// Package worlds draws worlds of Services, EndpointSlices, proxy settings and
// facts of a node from a seed, changes them step by step, and makes an API server
// hold them. Tests run kube-proxy and nodeproxy-agent side by side in them, in
// mode IPTables (New) or IPVS (NewIPVS).
//
//	settings.go   draws proxy settings and facts of the node
//	ipvs.go       draws what is of mode IPVS alone
//	world.go      draws Services
//	endpoints.go  draws EndpointSlices
//	change.go     draws changes of them
//	writer.go     makes the API server hold a world
//	describe.go   describes it for a Service
package worlds

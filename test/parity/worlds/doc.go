// Package worlds draws worlds of Services, EndpointSlices, proxy settings and
// facts of a node from a seed, changes them step by step, and stores them in an API
// server. Tests run kube-proxy and nodeproxy-agent side by side in them, in
// mode IPTables (New) or IPVS (NewIPVS).
//
//   - dice.go: what is drawn from the seed; families.go: IP families; node.go: the node's addresses
//   - settings.go, ipvs.go: proxy settings, those of mode IPVS
//   - world.go, endpoints.go: Services and EndpointSlices; change.go: changes of them
//   - writer.go: stores a world in an API server; describe.go: describes a Service of it
package worlds

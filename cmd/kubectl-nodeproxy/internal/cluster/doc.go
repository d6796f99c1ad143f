// Package cluster reads the objects of a cluster: nodeproxy's own and those that they are
// made from. It needs the permissions of nodeproxy-viewer and, for Services, EndpointSlices,
// Namespaces and Pods, those of the built-in role view. Errors name missing permissions.
//
//   - objects.go: the objects that were read
//   - reader.go, kinds.go, trim.go: how they are read
//   - explain.go, undecodable.go, service.go: errors with cause and remedy
//   - ownpods.go, conntrack.go: facts that several commands need
//   - clock.go: the API server's time
package cluster

// Package cluster reads the objects of a cluster: nodeproxy's own and those that they are
// made from. It needs the permissions of nodeproxy-viewer and, for Services, EndpointSlices,
// Namespaces and Pods, those of the built-in role view. Errors name missing permissions.
//
//   - objects.go: the objects that were read
//   - reader.go, kinds.go: how they are read
//   - kubeproxy.go: the objects that run and configure kube-proxy, of the same roles except Nodes
//   - explain.go: errors with cause and remedy
//   - freshness.go, notes.go: whether a node's report is current, and why the node may differ
//     from its desired rules
//   - hints.go: pages and commands that texts refer to
package cluster

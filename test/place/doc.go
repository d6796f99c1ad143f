// Package place creates network namespaces, with servers and clients in them, for tests
// that build the node around a data plane themselves. A place is the network namespace of
// a thread, so it disappears with the test. Those of package test/cluster belong to a
// cluster with a control plane, have names that the test must remove, and have servers in
// processes; these need only the kernel, even one of package test/uml in which the test is
// the first process.
//
//   - place.go: network namespaces; dial.go: clients; serve.go: servers
package place

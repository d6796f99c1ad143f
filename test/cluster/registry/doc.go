// Package registry has Services and EndpointSlices as Kubernetes' own controllers write them, for tests that
// measure what a large cluster costs, and writes objects to a cluster's etcd.
//
//   - objects.go: the objects
//   - store.go: the Store
package registry

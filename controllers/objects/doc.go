// Package objects reads the objects of the cluster as all reconcilers do: one by one, by index,
// and only while nodeproxy is switched on.
//
//   - get.go: a single object, the NodeProxy, whether anything may be rendered, names of rules
//   - indexes.go: the indexes of the cache, and the lists that use them
//   - apply.go: whether an object must be applied again
package objects

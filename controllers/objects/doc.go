// Package objects has what all reconcilers need to read and write the objects of the cluster.
//
//   - get.go: a single object, the NodeProxy, whether to render at all, names of rules
//   - indexes.go: the indexes of the cache, and the lists that use them
//   - apply.go: whether an object must be applied again, and writes in parallel
package objects

// Package clusterobjects maintains the admission policies and the labels of the controller's namespace,
// with --manage-cluster-objects.
//
//   - controller.go: the reconciler
//   - watch.go: the watch of the policies, which nothing else waits for
package clusterobjects

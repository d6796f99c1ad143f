// Package nodes runs the controller and agents as processes in a local cluster, and checks
// the nodes' kernels and the objects.
package nodes

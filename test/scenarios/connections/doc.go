// Package connections repeats the most important scenarios as real
// connections on the real kernel: a node, pods and clients in network namespaces.
package connections

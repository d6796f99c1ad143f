// Package connections holds the most telling of the scenarios as real
// connections on the real kernel: a node, pods and clients in network namespaces.
package connections

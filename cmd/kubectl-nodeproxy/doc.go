// Command kubectl-nodeproxy is a kubectl plugin that shows how nodeproxy serves the Services
// of a cluster, and why one is unreachable.
package main

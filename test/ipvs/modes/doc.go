// Package modes changes a node from one mode to the other and back, under load, in a
// kernel with IPVS: how this affects new connections, and which open connections continue
// (docs/ipvs.md lists them).
package modes

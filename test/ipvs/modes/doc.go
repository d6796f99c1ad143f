// Package modes changes a node from mode to mode and back, under load, in a
// kernel with IPVS: how this affects new connections, and which open connections continue
// (docs/ipvs.md lists them).
package modes

// Package kernel tests how agent/dataplane/ipvs reads and writes a kernel with IPVS:
// User-mode Linux.
package kernel

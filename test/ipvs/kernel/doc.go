// Package kernel tests how agent/dataplane/ipvs reads and writes the kernel, on
// one that has IPVS: User-mode Linux.
package kernel

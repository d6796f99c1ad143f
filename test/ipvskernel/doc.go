// Package ipvskernel runs tests and programs of this repository in a kernel with IPVS:
// this machine's, if it has it, otherwise User-mode Linux (package uml).
package ipvskernel

// Package kernelmodel has what models of the kernel share: packets, and what becomes of them.
package kernelmodel

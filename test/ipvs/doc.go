// Package ipvs holds tests of mode IPVS in a kernel that has IPVS, with a real API
// server, controller, agents and connections. Package ipvskernel finds the kernel.
//
// All tests use one cluster, one after the other, because there is one processor,
// and the control plane takes its time on it.
package ipvs

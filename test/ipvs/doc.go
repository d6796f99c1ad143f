// Package ipvs tests mode IPVS in a kernel with IPVS, with a real API
// server, controller, agents and connections. Package ipvskernel finds the kernel.
//
// All tests share one cluster, one after the other, because a control plane takes long to
// start on the only processor.
package ipvs

// Package ipvsmodel is a model of a kernel with IPVS: virtual servers, the device
// kube-ipvs0, ipsets, connections, and the fate of packets on their way through
// them and the rules of package iptablesmodel. It rejects what the kernel rejects.
//
//   - kernel.go: virtual servers, and calls that fail; device.go: the device; sets.go: ipsets
//   - trace.go: connections, and the fate of a packet
package ipvsmodel

// Package plane tests a data plane of mode IPVS, with its rules, sets and virtual servers,
// in a kernel with IPVS.
package plane

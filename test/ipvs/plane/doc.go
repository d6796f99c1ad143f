// Package plane holds a data plane of mode IPVS, with its rules, sets and virtual
// servers, against a kernel that has IPVS.
package plane

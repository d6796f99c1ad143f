// Package ipvstest has a model of a kernel with IPVS that records calls and lets them
// fail, for tests.
package ipvstest

// Package faults breaks things around running agents and controllers, one after
// the other, while connections to Services are made and held: real processes,
// real kernels, a real API server.
//
// Each fault is a value of type fault. Faults that do not disturb each other
// share a cluster and follow one another there; clusters run side by side, each
// with its own connections, so that the long faults overlap. Each fault gives a
// row of a table, which is printed as it comes and again at the end:
//
//	make test-faults
//	FAULTS=rules-flushed,reboot FAULTS_SEED=7 make test-faults
//
// How to read the table is told in docs/faults.md.
package faults

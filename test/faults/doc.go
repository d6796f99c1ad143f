// Package faults injects faults around running agents and controllers, while connections
// to Services are made and kept open: real processes, real kernels, a real API server.
//
// Each fault is a value of type fault. Faults that do not disturb each other share a
// cluster, where they run one after the other; clusters run in parallel, each with its own
// connections. Each fault prints a row of a table, which is printed again at the end:
//
//	make test-faults
//	FAULTS=rules-flushed,reboot FAULTS_SEED=7 make test-faults
//	PLANT_LOSS=1 make test-faults # loses a connection in each fault: it must fail without a retry
//
// docs/faults.md explains the table.
package faults

// Package lifecycle tests controller and agents together, with a real API server and
// kernels in memory.
package lifecycle

// Package load makes new connections to Services at a steady pace, keeps others open, and
// records which of them fail.
//
//   - load.go, measurements.go: the load and what it counts; lost.go: what a lost connection means
//   - standstill.go: machines that stand still
package load

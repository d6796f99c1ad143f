// Package status summarizes the state of a cluster: counts first, then problems. It is
// pure: objects in, a report out.
//
//   - status.go: the report
//   - table.go: how it is printed
//
// Package findings has the checks, which doctor shares.
package status

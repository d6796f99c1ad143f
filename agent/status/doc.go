// Package status turns what is desired (a desired.Snapshot) and what else the agent knows (Facts)
// into the status of the node's NodeProxyRules with its conditions.
//
//   - status.go: the status
//   - programmed.go: the condition Programmed
//   - conditions.go: Accepted, ConflictingProxy, ModeFallback, ConntrackPressure
//   - writer.go: when the status is written
package status

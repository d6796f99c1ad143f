// Package status words what the agent reports of its node: the status of the
// node's NodeProxyRules with its conditions, from what is desired (a
// desired.Snapshot) and what the agent knows besides (Facts).
//
// Where to look:
//
//   - status.go: the status, and the conditions Accepted and Programmed
//   - conflict.go, conditions.go, pressure.go: ConflictingProxy, ModeFallback, ConntrackPressure
//   - audit.go, removal.go, checkpoint.go: what Programmed reports in Audit, during a
//     removal, and while a checkpoint is in use
//   - writer.go: when the status is written
package status

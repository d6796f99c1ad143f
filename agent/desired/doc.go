// Package desired owns what a node should have in its kernel, and how far that has
// come: the Services and their claims, the node's own object, what has changed and
// waits to be applied, and what the kernel has by the last Apply or comparison. A
// Store is one state with one lock; the watches write to it, the sync loop takes
// batches from it and reports their outcomes.
//
// Where to look:
//
//   - store.go: Services as they come, vanish (and are retained) and are released
//   - noderules.go, acceptance.go, formats.go: the own object, whether it is accepted
//   - inventory.go: whether the list is complete, so that rules may be pruned
//   - costly.go, retries.go: which changes and which rejected Services wait
//   - family.go: one IP family, and the batch that a sync takes and commits
//   - compared.go, audit.go: outcomes of verifications and of audits
//   - checkpoint.go: what stands in for an API that does not answer
//   - mode.go: which mode runs
//   - ownership.go, pending.go: what is forgotten when another proxy runs
//   - removal.go: the end of all rules, after the NodeProxy was deleted
//   - health.go, served.go, snapshot.go, changes.go: what is reported of it
package desired

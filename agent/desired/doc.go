// Package desired has the desired state of a node, and how much of it the kernel has. A Store
// joins parts that have methods of their own under one lock: the watches write to it, the sync
// loop takes batches from it and reports their outcomes.
//
// Where to look:
//
//   - store.go: the parts, their lock, and what is known of the kernel as a whole
//   - services.go: the catalog of Services: how they come, vanish (and are retained), and end by an
//     object with released
//   - node.go, accept.go: the own object, its settings, and whether it is accepted
//   - inventory.go: ends retained Services that the inventory lacks too; the mark released comes from
//     controllers/services; whether the list is complete, so that rules may be pruned
//   - ledger.go: everything that still has to be written; choose.go: a choice of which costly changes
//     wait; retries.go: when rejected Services are tried again; metrics.go: counts of changes
//   - family.go, counts.go: one IP family, and all of them; batch.go: what a sync takes and commits
//   - verify.go, audit.go: outcomes of verifications and of audits
//   - checkpoint.go: what replaces an API that does not answer
//   - mode.go: which mode runs
//   - removal.go: the end of all rules, after the NodeProxy was deleted
//   - snapshot.go, health.go: what is reported of it
package desired

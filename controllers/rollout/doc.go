// Package rollout decides which nodes get changed settings next. It is pure: its decisions follow from
// objects of the API alone, so that a restart during a rollout changes nothing.
//
//   - rollout.go: BudgetOf (what an object permits), Decide, limit (maxUnavailable as a number), may
//     (whether a node gets its change)
package rollout

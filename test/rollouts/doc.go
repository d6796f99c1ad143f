// Package rollouts follows changes of settings from node to node in the order in which the
// API server stored them, so that it misses no state, however short.
//
//   - follow.go: the versions of objects; story.go: the rollout that they show; policy.go: status of policies
package rollouts

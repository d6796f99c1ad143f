// Package liveness reports agents that do not respond, and counts those that lag behind, by their
// Leases and the controller's own clock.
//
//   - watcher.go: reads the Leases, and reports the results
//   - liveness.go: decides which agents are silent and which lag behind
package liveness

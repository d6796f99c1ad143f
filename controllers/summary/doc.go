// Package summary writes the status of NodeProxy.
//
//   - controller.go: the reconciler, the inventory, and events
//   - readiness.go: the condition Ready
package summary

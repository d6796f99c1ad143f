// Package summary writes the status of NodeProxy.
//
//   - controller.go: the reconciler, and the inventory
//   - readiness.go: the conditions Ready and AgentsDeployed, and events about Ready
package summary

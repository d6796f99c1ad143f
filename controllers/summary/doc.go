// Package summary writes the status of NodeProxy.
//
//   - controller.go: the reconciler, and the inventory
//   - readiness.go: the condition Ready; rollouts.go: how a rollout changes it; detect_local.go: a
//     warning that it contains
//   - agents.go: the condition AgentsDeployed
package summary

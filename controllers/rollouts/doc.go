// Package rollouts gives changed settings to nodes, within the budgets of NodeProxy and its
// policies, and writes the status of NodeProxyPolicies. The arithmetic is in package rollout.
//
//   - controller.go: the reconciler
//   - nodes.go: actual and desired settings of each node
//   - pass.go: one pass over all nodes, and the progress of each
//   - status.go: conditions and their messages, and events
package rollouts

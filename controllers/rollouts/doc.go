// Package rollouts gives changed settings to nodes, within the budgets of NodeProxy and its
// policies, and writes the status of NodeProxyPolicies. The arithmetic is in package rollout.
//
//   - controller.go: the reconciler
//   - nodes.go: what each node has and is to have
//   - pass.go: one pass over all nodes, and how each of them does
//   - status.go, texts.go: conditions and their messages; events.go: events
package rollouts

// Package nodes renders Nodes, and keeps one NodeProxyRules for each Linux Node. Changed settings of
// existing rules are up to package rollouts.
//
//   - controller.go: the reconciler
//   - events.go: which nodes a change concerns
//   - enqueue.go: how many nodes each namespace may have rendered
//   - pace.go: how much of NodeProxyRules each namespace may have written
//   - left_out.go: records Services whose local endpoints exceed a limit of a node
package nodes

// Package nodes renders each Linux Node into a NodeProxyRules. Package rollouts changes the settings of
// existing ones.
//
//   - controller.go: the reconciler
//   - events.go: which nodes a change concerns
//   - over_limit.go: which Services to render again when they are within the limits
//   - enqueue.go: how many nodes each namespace may have rendered
//   - pace.go: how much of NodeProxyRules each namespace may have written
//   - left_out.go: records Services whose local endpoints exceed a limit of a node
package nodes

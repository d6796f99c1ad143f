// Package rules computes the desired rules of a node, with the agent's code, and how they
// differ from what the node reports, or from those of another node. It is pure: objects in,
// reports out.
//
//   - rules.go, endpoints.go: the desired rules; table.go: how they are printed
//   - diff.go, nodes.go: the comparison with the report, or with another node
package rules

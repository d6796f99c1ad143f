// Package trace predicts the path of a packet on a node, between addresses or the pods, nodes
// and Services that the user names: objects in, a report out.
//
//   - trace.go, table.go: the report and how it is printed
//   - source.go, destination.go: what the user names
//   - notes.go: why the node may differ
package trace

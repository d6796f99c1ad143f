// Package notes finds out why a node may differ from its desired rules: from what its agent
// reports, and by how fresh that is. It is pure.
//
//   - notes.go: the notes of rules and trace
//   - freshness.go: whether an agent's report is current, and its rules are applied
package notes

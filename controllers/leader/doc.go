// Package leader decides which of several controllers may write. The others stand by with filled
// caches, and take part in the election.
//
//   - election.go: the election
//   - gate.go: lets work pass while this process leads
package leader

// Package events writes events off the path of the reconcilers: at most one for each object and
// reason in ten minutes, of which the last one counts.
//
//   - recorder.go: what an event says, and under which name
//   - queue.go: when it is written, and what happens if that fails
package events

// Package events writes events, at most one for each object and reason in ten minutes, so that
// reconcilers do not wait for the API server.
//
//   - recorder.go: the content and the name of an event
//   - queue.go: when it is written, and what happens if that fails
package events

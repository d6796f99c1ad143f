// Package pacing limits how fast something happens. It knows nothing of objects or events: what is
// limited, and to which rate, is up to its users.
//
//   - bucket.go: bytes a second, by key
//   - turns.go: Services one after the other
package pacing

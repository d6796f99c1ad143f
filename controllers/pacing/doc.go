// Package pacing limits rates. What is limited, and to which rate, is up to its users.
//
//   - bucket.go: bytes a second, by key
//   - throttle.go: Services one after the other
package pacing

// Package pacing limits rates: bytes a second, by key, and Services one after the other. What is
// limited, and to which rate, is up to its users.
package pacing

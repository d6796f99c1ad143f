// Package httpport serves HTTP on ports on which clients cannot block each other: every
// connection has time limits, and one too many closes another one instead of waiting.
package httpport

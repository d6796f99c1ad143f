// Package sctp makes connections over SCTP, one stream each, which the standard library
// lacks. They behave like TCP connections.
package sctp

// Package retry decides what follows from a write that failed: another attempt soon, one later, or
// a message, because the API server denies the object itself.
package retry

// Package retry decides what follows from a failed write: another attempt soon, one later, or a
// message, because the API server denies the object itself.
package retry

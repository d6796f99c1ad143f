// Package pause waits for a time, the end of a context or a wake-up, whichever comes first.
package pause

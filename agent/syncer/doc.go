// Package syncer decides when the agent writes to the kernel: the first change at once, later ones
// after a minimum interval, failures again with backoff, a slow verification, and checks in
// between if something may have changed. It does not know what is written.
package syncer

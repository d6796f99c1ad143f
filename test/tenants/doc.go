// Package tenants lets one tenant attack the shared proxy with what the API server accepts
// in its namespace: Services, EndpointSlices and pods. Meanwhile a second tenant creates a
// Service every second, every other one with traffic policy Local, and connects to it, with
// a real API server, a real controller, and two agents on real kernels.
//
// The first part, without an attack, measures how long the second tenant waits, how much
// memory controller and agents use, and how soon they answer probes. Then each attack is
// repeated for a while, and finally all of them together. Each part adds a row to a table, which
// is printed at the end; docs/security.md has one. An attack during which the second tenant waits too long
// is repeated once, because a defect shows again, and counts as a retried test of the run. A stolen connection ends the test at once.
//
// Mode NFTables has a test of its own. Mode IPVS has none: User-mode Linux, where kernels lack it,
// has one processor, on which times mean nothing.
//
// TENANTS is a regular expression that selects attacks, TENANTS_LOOP such as 1m how long each is
// repeated, TENANTS_SLOWER how many times the quiet wait is allowed (3). To test other versions of controller and agent, set NODEPROXY_PROGRAMS to a directory with
// their programs (package programs).
package tenants

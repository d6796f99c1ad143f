// Package apiclient is the agent's access to the API server: it reads the three kinds that the
// agent watches, writes the status of its own object, and renews its Lease, the agent's heartbeat.
//
//   - client.go: requests, and the status
//   - watch.go: the watches, and the Receiver of their objects
//   - errors.go: errors of reading, logged with a remedy
//   - lease.go: when the Lease is renewed, and its content
//   - metrics.go: metrics of all of it
package apiclient

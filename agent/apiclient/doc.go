// Package apiclient is everything that the agent does with the API server: it
// reads the three kinds that it watches, writes the status of its own object, and
// renews its Lease, the agent's heartbeat.
//
//   - client.go: requests, and the status by server-side apply
//   - watch.go: the watches, and the Receiver that takes what they show
//   - errors.go: errors of reading, logged with what to do
//   - lease.go: when the Lease is renewed, and what it tells the controller
//   - metrics.go: metrics of all of it
package apiclient

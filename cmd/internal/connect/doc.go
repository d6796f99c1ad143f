// Package connect connects the programs to the API server: credentials, addresses,
// failover between several servers, and errors if none responds.
//
//   - connect.go: flags and configuration
//   - servers.go: which server to use
//   - failover.go: sends a request to the first server that responds
//   - file.go: addresses in a file
//   - server.go: an address
package connect

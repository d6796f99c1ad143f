// Package connect connects the programs to the API server: credentials, addresses, failover between
// several servers, and errors if none responds.
//
//   - connect.go: flags and configuration
//   - servers.go: which server to use, and failover to the next one
//   - addresses.go: addresses, also in a file
package connect

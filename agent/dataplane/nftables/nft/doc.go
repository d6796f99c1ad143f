// Package nft speaks nf_tables, by netlink: batches of changes that the kernel makes all together
// or not at all, listings of what it has, and events about changes by any program. It knows nothing
// of Services.
//
//   - batch.go: changes of tables, chains, rules, sets and their elements
//   - expr.go: the expressions that rules consist of
//   - list.go: reads tables, chains, rules, sets and elements
//   - events.go: reads events
//   - conn_linux.go: the socket
package nft

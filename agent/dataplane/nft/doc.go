// Package nft speaks nf_tables, by netlink: batches of changes that the kernel makes all together
// or not at all, listings of what it has, and events about changes by any program. It knows nothing
// of Services.
//
//   - batch.go: changes of tables, chains, rules, sets and their elements
//   - expr.go: the expressions that rules consist of; types.go: types of keys; comment.go: comments
//   - message.go: a message of a batch, for models
//   - errors.go, describe.go: what the kernel has rejected
//   - list.go: reads tables, chains, rules, sets and elements
//   - events.go: reads events; monitor_linux.go: receives them
//   - conn_linux.go: the socket
package nft

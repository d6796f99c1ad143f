// Package nftables programs Services in one table of nf_tables for each IP family. No chain, rule
// or set belongs to a Service: a map of verdicts says what to do with a destination and how many
// endpoints it has (goto cluster-3), and a map of data has the endpoint for a destination and an
// index. The chains exist once for each number of endpoints, so that a change of a Service changes
// elements only.
//
// The desired state; pure:
//
//   - config.go: what the rules depend on besides Services
//   - layout.go: the sets, maps, chains and rules of the table
//   - plan.go: the destinations of one Service
//   - elements.go: the elements of a destination
//
// What the kernel has, and how it differs:
//
//   - read.go: the table as a listing, and as a state
//   - state.go: a state, and an update of it
//   - compare.go: compares a listing to the desired state; pure
//   - contest.go: which Service has a destination that several ask for; pure
//
// What changes the kernel:
//
//   - dataplane.go: the Dataplane; apply.go: the operations of package engine
//   - observe.go: what other programs have changed
//
// The kernel itself:
//
//   - package nft: messages, listings and events
package nftables

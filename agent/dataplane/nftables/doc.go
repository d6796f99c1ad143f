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
// The kernel itself:
//
//   - package nft: messages, listings and events
package nftables

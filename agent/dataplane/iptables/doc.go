// Package iptables programs a Ruleset with iptables rules.
//
// Chains, names and hashes are kube-proxy's, so that tools and habits built on
// them still work and a node can be taken over in place. Planning (plan.go,
// node.go) and comparing (compare.go, transaction.go) are pure. Only tools_linux.go, apply.go,
// full.go and partial.go read and write the kernel.
//
// Other data planes use
//
//   - FixedRules, which programs the rules of package fixedrules (fixed.go)
//   - Commits, which knows who has changed nf_tables (commits_linux.go, watch_linux.go)
//
// Which chains and rules are whose is read from the declarations of the modes (declaration.go).
//
//   - iptables.go: the Dataplane and its options
//   - plan.go, node.go, chain.go, later.go: the desired rules; spread.go: how connections are spread
//     over endpoints
//   - compare.go, dispatch.go, rulehash.go, preserve.go: how the kernel differs
//   - transaction.go, transaction_calls.go: what is written, in which calls
//   - apply.go, full.go, partial.go, remove.go, audit.go: Apply, Cleanup and Audit
//   - programs.go, variant.go, tools_linux.go, toolerror.go: the programs
//   - kernel.go, model.go, observe.go: what was read, a model of it, and what has changed
package iptables

// Package kubeproxy reads the table of kube-proxy in mode nftables, and predicts what becomes of a
// packet by it. The prediction interprets the rules as the kernel does, so it does not depend on how
// kube-proxy lays out its table. It is only to be compared with: nothing here writes.
//
//   - table.go: reads the table; what it serves
//   - packet.go: packets and their outcomes
//   - hooks.go: the way of a packet through the base chains
//   - run.go: the expressions of rules; pure
package kubeproxy

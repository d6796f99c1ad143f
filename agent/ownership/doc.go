// Package ownership decides whether the agent owns the node's proxy rules: it writes only
// while no other proxy serves the Services of the node.
//
// Where to look:
//
//   - owner.go: acquires ownership, watches it and loses it
//   - waiting.go: how long no other proxy may have been detected before the agent writes
//   - probe.go: probes the ports of other proxies
//   - serving.go: asks another proxy whether it serves
//   - detection: detects them in the kernel
package ownership

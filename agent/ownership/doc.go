// Package ownership tells whether another proxy serves the Services of this node, and
// for how long it must be quiet before the agent may write.
//
// Where to look:
//
//   - probe.go: asks the ports of other proxies
//   - waiting.go: how long to wait after another proxy has shown
package ownership

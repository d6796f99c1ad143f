// Package agentdeploy decides how the controller runs the agents. It is pure.
//
//   - daemonset.go, metrics.go, ports.go: the DaemonSet
//   - apiservers.go: the addresses of the API servers
//   - state.go: what the state of the DaemonSet and its pods means
package agentdeploy

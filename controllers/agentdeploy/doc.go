// Package agentdeploy decides how the controller runs the agents. It is pure.
//
//   - daemonset.go: the DaemonSet
//   - apiservers.go: the addresses of the API servers
//   - state.go: the condition AgentsDeployed, from the DaemonSet and its pods
package agentdeploy

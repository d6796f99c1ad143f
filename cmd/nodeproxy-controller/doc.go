// Command nodeproxy-controller renders Services into ServiceProxyRules and
// NodeProxyRules for the node agents, and reports the state of the cluster in
// NodeProxy.
//
//   - main.go: flags and wiring; ports.go: what it serves; requirements.go: what it needs to begin
//   - render.go: the subcommand render
package main

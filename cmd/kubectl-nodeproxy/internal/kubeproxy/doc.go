// Package kubeproxy translates the configuration of the kube-proxies in a cluster into a
// NodeProxy, and NodeProxyPolicies for node pools whose kube-proxy differs.
//
//   - fields.go: what becomes of each field of kube-proxy's configuration; docs/migration.md
//     has the same table
//   - import.go: from the cluster to the objects; print.go: the objects as YAML with comments
//   - find.go, k3s.go: the kube-proxies of a cluster; selectors.go: which nodes they serve
//   - config.go: the effective configuration; flags.go, command.go: command lines
//   - settings.go: settings of one kube-proxy
package kubeproxy

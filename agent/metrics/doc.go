// Package metrics is the registry of the agent's metrics and most of the metrics
// themselves: metrics.go has those of nodeproxy, proxymetrics.go those that mean
// what kube-proxy's mean and have its names, modemetrics.go those of the mode that
// runs. Packages with metrics of their own register them here. docs/metrics.md lists
// all of them.
package metrics

// Package metrics is the registry of the agent's metrics and has most of the metrics themselves:
// metrics.go those of nodeproxy, proxymetrics.go those with the meaning and name of one of
// kube-proxy's. Packages with metrics of their own register them here. docs/metrics.md lists all
// of them; a test compares.
package metrics

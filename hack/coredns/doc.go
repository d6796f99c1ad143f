//go:build tools

// Package coredns pins the CoreDNS that the clusters of test/cluster/kubelets
// run. Nothing imports it.
package coredns

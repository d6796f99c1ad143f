//go:build tools

// Package kubernetes pins the programs of Kubernetes that the local clusters
// of test/cluster build. Nothing imports it.
package kubernetes

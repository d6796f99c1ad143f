//go:build tools

// Package kubernetes pins kube-proxy of the last Kubernetes that has its mode userspace. Nothing
// imports it.
package kubernetes

//go:build tools

// Package kubernetes pins the programs of the oldest Kubernetes that nodeproxy
// promises to run on. Nothing imports it.
package kubernetes

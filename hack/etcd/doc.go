//go:build tools

// Package etcd pins the etcd that the local clusters of test/cluster build.
// Nothing imports it.
package etcd

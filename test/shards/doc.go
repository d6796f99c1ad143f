// Package shards has several processes share the specs of a suite that mostly waits, each with an
// API server of its own.
package shards

// Package apiservers maintains the ConfigMap with the addresses of the API servers, which agents and
// controllers read.
//
//   - controller.go: the reconciler
//   - probe.go: whether an API server answers
package apiservers

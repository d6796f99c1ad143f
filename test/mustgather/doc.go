// Package mustgather runs hack/must-gather against a real API server: with full
// permissions, without permissions, and without a response. Without kubelets nothing can
// run in pods.
package mustgather

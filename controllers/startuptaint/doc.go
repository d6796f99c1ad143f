// Package startuptaint removes the startup taint from Nodes whose agent serves pods.
//
//   - controller.go: the reconciler
//   - taint.go: whether an agent serves pods
package startuptaint

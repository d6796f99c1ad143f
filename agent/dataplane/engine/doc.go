// Package engine implements Apply by the narrow operations of a data plane: it decides between
// a pass over the changed Services and a full one, tracks which Services the kernel rejects,
// finds those at fault among many, and follows the node's addresses. It knows no kernel.
//
//   - engine.go: Apply, and the operations that it needs
//   - services.go: which Services are written, wait, or stay rejected
//   - isolate.go: writes many Services at a time, and finds those that the kernel rejects
//   - addresses.go: when the node's addresses have changed
package engine

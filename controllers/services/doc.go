// Package services renders Services, and maintains one ServiceProxyRules for each eligible one.
//
//   - controller.go: the reconciler: when a Service is rendered, and with what
//   - enqueue.go: which Services a slice, an address, a policy or a Namespace concerns
//   - write.go: creates, updates, releases and deletes rules
//   - memory.go: what is remembered of Services between reconciliations, and how much each namespace
//     may write
//   - problems.go: problems of Services, and Services that cannot be stored
package services

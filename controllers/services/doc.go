// Package services renders Services, and keeps one ServiceProxyRules for each eligible one.
//
//   - controller.go: the reconciler: when a Service is rendered, and what with
//   - write.go: creates, updates, releases and deletes rules
//   - memory.go: what is remembered of Services between reconciliations; rejections.go: of those
//     that cannot be stored
//   - pace.go: how much each namespace may have written
//   - problems.go: what events say about Services
//   - addresses.go, policy_events.go: which Services an address, a policy or a Namespace concerns
package services

// Package overrides decides which of the overrides of ServiceProxyPolicies a Service has. A change
// reaches Services one after the other and halts where nodes reject what it made of one.
//
//   - overrides.go: the decision for one Service
//   - policies.go: the policies, and what they make of each Service
//   - snapshot.go: caches of lists
//   - rejections.go: the Services that nodes reject, and whether a change halts because of them
package overrides

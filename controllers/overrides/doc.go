// Package overrides decides which overrides of ServiceProxyPolicies a Service has. A change reaches
// Services one after the other, and halts if nodes reject one that it has changed.
//
//   - overrides.go: the decision for one Service
//   - policies.go: the policies, and what they result in for each Service
//   - rejections.go: the Services that nodes reject, and whether a change halts because of them
package overrides

// Package policies decides which policy sets which field. For each field, the policy with the highest
// priority wins; ties are broken by name, never by age: the same objects have the same result in
// every cluster. It is pure.
//
//   - nodes.go, nodes_policy.go: settings of nodes
//   - services.go, services_policy.go: overrides of Services
//   - services_grant.go, services_halt.go: changes of overrides, and for whom they halt
//   - overlay.go, selector.go: merging of structs, and selectors
package policies

// Package policies decides which policy sets which field. For each field, the policy with the highest
// priority wins; ties are broken by name, never by age: the same objects have the same result in
// every cluster. It is pure.
//
//   - nodes.go: settings of nodes
//   - services.go: overrides of Services; services_grant.go: their changes, and for whom they halt
//   - overlay.go, selector.go: merging of structs, and selectors
package policies

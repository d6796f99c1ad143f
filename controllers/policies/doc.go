// Package policies decides which policy sets which field. For each field, the policy with the highest
// priority wins; ties are broken by name, never by age: the same objects have the same result in
// every cluster. It is pure.
//
//   - nodes.go: settings of nodes
//   - services.go: overrides of Services, their changes, and for whom they halt
//   - overlay.go: merging of structs, and selectors
package policies

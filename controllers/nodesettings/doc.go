// Package nodesettings parses NodeProxy and the NodeProxyPolicies, and the grants that record in a
// node's rules which settings it was given and why.
//
//   - policies.go: the policies, their budgets, and the causes of a change
//   - grant.go: the grant
package nodesettings

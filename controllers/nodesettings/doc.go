// Package nodesettings parses NodeProxy and the NodeProxyPolicies, and the grants that record in a
// node's rules which settings it was given and why.
//
//   - policies.go: the policies, their budgets, the causes of a change, and grants
package nodesettings

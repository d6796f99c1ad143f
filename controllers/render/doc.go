// Package render computes what nodeproxy publishes (ServiceProxyRules, NodeProxyRules, the inventory)
// from the objects of the cluster (Services, EndpointSlices, Nodes, NodeProxy). It is pure: no client,
// clock or logger, and the same bytes for the same input in any order.
//
//   - service.go, endpoints.go: Services with their endpoints; overrides.go: what policies change
//   - address.go, reserved.go: addresses and ranges, and addresses that no Service may have
//   - node.go, settings.go: Nodes and their settings; local.go, share.go: their local endpoints
//   - limits.go: sizes, and pauses between writes
//   - format.go: the version of the format, and the inventory
package render

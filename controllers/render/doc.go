// Package render computes what nodeproxy publishes (ServiceProxyRules, NodeProxyRules, the inventory)
// from the objects of the cluster (Services, EndpointSlices, Nodes, NodeProxy). It is pure: values in,
// values out, and the same bytes for the same input in any order; no client, clock or logger.
//
//   - service.go, endpoints.go, address.go: Services with their endpoints
//   - ranges.go, reserved.go: source ranges, and addresses that no Service may have
//   - overrides.go: what policies change in Services
//   - node.go, settings.go: Nodes and their settings; members.go, share.go: their local endpoints
//   - limits.go, pace.go: limits, and pauses between writes
//   - format.go, inventory.go: the version of the format, and the inventory
package render

// Package addresses knows what the cluster has at the addresses that Services name: service
// ranges, API servers and Nodes. A Service must not take over any of them.
//
//   - ranges.go: follows the ServiceCIDRs, if the API server has the kind
//   - surroundings.go: what is known at the addresses of one Service
package addresses

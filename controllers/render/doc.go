// Package render turns what the cluster says (Services, EndpointSlices, Nodes,
// NodeProxy) into what nodeproxy publishes (ServiceProxyRules, NodeProxyRules,
// the inventory). It is pure: values in, values out, the same bytes for the
// same input in whatever order it comes; no client, clock or logger.
package render

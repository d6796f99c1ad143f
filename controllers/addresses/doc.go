// Package addresses watches the ServiceCIDRs, if the API server has the kind: a Service must not take
// over an address inside a service range.
package addresses

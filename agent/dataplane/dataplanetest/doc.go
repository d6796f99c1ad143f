// Package dataplanetest has a data plane in memory, for tests of the code above the data planes. It
// models the kernel state, not the calls.
//
//   - fake.go: the data plane; control.go: what a test makes of it, and reads; large.go: large Services;
//     ipv6.go: Services in IPv6
package dataplanetest

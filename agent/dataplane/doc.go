// Package dataplane is the contract between the agent, which knows the desired state of a node,
// and the data planes that program the kernel. It knows no kernel library.
//
// A data plane implements Dataplane for the rules of one mode in one IP family, so that a
// failure of one family does not stop the other. Beside other modes it is also a ModeCleaner, and
// if it notices changes by itself, an Observer. Its Declaration describes the mode. Package
// modes lists all modes, and package engine helps to implement Apply.
//
//   - dataplane.go: the interfaces and their arguments; result.go: their results
//   - service.go, destinations.go: a Service and where clients reach it; protocol.go: protocol numbers
//   - addresses.go: the node's addresses, and on which of them NodePorts answer
//   - declaration.go: what a mode owns in the kernel, its precedence and properties
//   - fanout.go: joins the IP families
//   - events.go: follows events of the kernel; sysctls.go: reads and writes sysctls
package dataplane

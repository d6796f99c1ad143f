// Package tenants lets one tenant attack the proxy of all with what Kubernetes' API server
// accepts in one namespace: Services, EndpointSlices and pods. Meanwhile a second tenant
// creates a Service every second, every other one with traffic policy Local, and connects to it
// by the rules of the nodes: a real API server, a real controller, two agents on real kernels.
//
// The first part is quiet and shows how long the second tenant waits, how much memory
// controller and agents take, and how soon they answer probes, without an attack. Then each
// attack comes once, and at last all of them together, again and again. Each part gives a row
// of a table, which is printed at the end; docs/security.md has one.
//
// To see which rows fail for other versions of controller and agent, put their programs into a
// directory that the environment variable NODEPROXY_PROGRAMS names (package programs).
package tenants

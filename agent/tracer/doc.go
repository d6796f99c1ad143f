// Package tracer determines what happens to a packet on a node, from the node's desired state: the
// agent's data planes program a model of the kernel, through which it follows the packet. It reads
// and changes nothing of the machine that it runs on.
//
//   - tracer.go: a packet, and its way through the model; result.go: what happens to it
package tracer

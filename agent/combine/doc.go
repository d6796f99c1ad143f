// Package combine joins a Service's state, which is the same for all nodes, with this node's local
// endpoints into what one IP family of the node should serve. It is pure. Users may have edited
// its input: it skips and reports what it cannot use, and never panics.
//
//   - combine.go, reader.go: one Service; claims.go, registry.go: claims of several; whole.go: a whole node
package combine

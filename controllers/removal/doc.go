// Package removal removes everything with a NodeProxy whose removalPolicy is Cleanup: first the
// rules on the nodes, then what was rendered, then NodeProxy.
package removal

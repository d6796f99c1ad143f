// Package recovery writes the node's checkpoint while the API answers, and restores the
// desired state from it if the API does not answer after the start.
package recovery

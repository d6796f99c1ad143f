// Package rollouts follows changes of settings as they go from node to node, by
// what the API server has stored and in that order: nothing that lasted only for a
// moment is overlooked.
package rollouts

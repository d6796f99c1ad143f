// Package rollouts follows changes of settings from node to node in the order in which the
// API server stored them, so that it misses no state, however short.
package rollouts

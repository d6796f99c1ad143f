// Package speed measures the real controller, agent and plugin against a real API
// server and a real kernel, and fails if one is five times slower than usual.
package speed

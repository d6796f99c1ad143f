// Package apitest tests the agent against a real API server, with a data plane
// in memory.
package apitest

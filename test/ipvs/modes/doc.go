// Package modes holds tests that change a node from one mode to the other and
// back in a kernel that has IPVS, under load: what new connections notice of it,
// and which connections that are held go on. docs/ipvs.md has the list.
package modes

// Package modes lists the modes, and joins their data planes to one for each IP family, which
// runs the mode of a Ruleset and then cleans up the others.
//
//   - declared.go: the modes, their fallbacks and models
//   - host_linux.go: the data planes of a node
//   - modes.go: runs one mode and follows changes; cleanup.go: cleans up the others
package modes

// Package formats negotiates the version in which rendered objects are written: the newest that
// all agents know.
//
//   - formats.go: the version, and how it follows from what the agents report
//   - controller.go: what renders everything again when it changes
package formats

// Package formats negotiates the version in which rendered objects are written: the newest that
// all agents know.
package formats

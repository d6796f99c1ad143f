// Package messages checks the style of the messages of conditions and events, for the tests
// of all programs that write them.
package messages

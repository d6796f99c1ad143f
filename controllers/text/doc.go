// Package text holds the limits of messages in status and events, and what shortens a message to
// them.
package text

// Package text limits messages in status and events, and formats their parts.
package text

// Package checkpoint has the agent's last complete state on the node's disk, for an agent that
// starts while it cannot read its objects from the API.
//
// Where to look:
//
//   - checkpoint.go: what it consists of; identity.go: whether it is of this boot
//   - codec.go, file.go: its format, and how it is written in one piece
//   - disk.go: access to a disk that may hang
//   - recovery: when it is written and used
package checkpoint

// Package agenttest makes the objects that the tests of the agent's packages share.
//
//   - objects.go: the objects; board.go: the API that stores statuses
//   - server.go, sockets.go: HTTP servers, and sockets of other programs
package agenttest

package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	// agentLeasePrefix keeps agents' Leases apart from others in the namespace,
	// among them the controller's, whatever a Node is called.
	agentLeasePrefix = "agent."
	// longAgentLeasePrefix begins the names of Leases of Nodes whose own name
	// leaves no room for a prefix. No other Lease of an agent begins with it.
	longAgentLeasePrefix = "agent-of-long-name."
	// maxObjectName is how long a name may be, in bytes.
	maxObjectName = 253
)

// AgentLeaseName returns the name of the Lease of a node's agent: "agent."
// and the Node's name. Of a name of more than 247 bytes it is a hash that is
// put there instead. No two Nodes share a Lease.
func AgentLeaseName(node string) string {
	if len(agentLeasePrefix)+len(node) <= maxObjectName {
		return agentLeasePrefix + node
	}
	sum := sha256.Sum256([]byte(node))
	return longAgentLeasePrefix + hex.EncodeToString(sum[:])
}

// IsAgentLeaseName reports whether a Lease's name is one that AgentLeaseName
// gives.
func IsAgentLeaseName(name string) bool {
	return strings.HasPrefix(name, agentLeasePrefix) || strings.HasPrefix(name, longAgentLeasePrefix)
}

package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	// agentLeasePrefix separates agents' Leases from others in the namespace, such as the
	// controller's, whatever the Node's name.
	agentLeasePrefix = "agent."
	// longAgentLeasePrefix starts the Lease names of Nodes whose own name leaves no space for
	// a prefix. No other agent's Lease has it.
	longAgentLeasePrefix = "agent-of-long-name."
	// maxObjectName is the maximum length of a name, in bytes.
	maxObjectName = 253
)

// AgentLeaseName returns the name of an agent's Lease: "agent." and the Node's name, or a hash
// of the Node's name if that is longer than 247 bytes. No two Nodes share a Lease.
func AgentLeaseName(node string) string {
	if len(agentLeasePrefix)+len(node) <= maxObjectName {
		return agentLeasePrefix + node
	}
	sum := sha256.Sum256([]byte(node))
	return longAgentLeasePrefix + hex.EncodeToString(sum[:])
}

// IsAgentLeaseName reports whether AgentLeaseName can return this name.
func IsAgentLeaseName(name string) bool {
	return strings.HasPrefix(name, agentLeasePrefix) || strings.HasPrefix(name, longAgentLeasePrefix)
}

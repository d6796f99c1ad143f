package iptables

import "github.com/nodeproxy-io/nodeproxy/agent/dataplane"

// Fixed are chains with all of their rules and the jumps from built-in chains
// to them. Rules are as iptables-restore reads them, without "-A CHAIN".
type Fixed struct {
	Chains []FixedChain
	// Jumps are those of one built-in chain from first to last.
	Jumps []Jump
}

// FixedChain is a chain that holds these rules, in this order, and no others.
type FixedChain struct {
	Table string // filter or nat
	Name  string
	// Rules may say MASQUERADE --random-fully, which is left out of them where
	// iptables does not know it.
	Rules []string
}

// Jump is a rule of a built-in chain, among others' rules there.
type Jump struct {
	Table string // filter or nat
	Chain string // such as PREROUTING
	Rule  string
}

// FixedState is how the kernel differs from a Fixed, and how much of it the
// kernel holds.
type FixedState struct {
	// Findings are all differences. Their keys begin with "iptables "; those of
	// one place stay the same while what is wanted and what is held there do.
	Findings []dataplane.Finding
	// Chains and Rules count what the kernel holds of the chains that are wanted,
	// jumps to them included.
	Chains, Rules int
	// Warnings say what is wrong about the variant of iptables in use, for people.
	Warnings []string
}

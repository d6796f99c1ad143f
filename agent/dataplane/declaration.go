package dataplane

import (
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Declaration describes a mode: what is the same on all nodes.
type Declaration struct {
	Mode v1alpha1.ProxyMode
	// Precedence orders modes: if several are in the kernel, packets meet the lowest first,
	// which decides. A change of modes depends on it.
	Precedence int
	// Baseline: every node is expected to run the mode. It runs without a call of Supported,
	// and a family that it cannot serve does not count for other modes. There is one.
	Baseline bool
	// HarmlessProbe: Supported changes nothing, so that every agent can report whether its node could
	// run the mode.
	HarmlessProbe bool
	// PrecedesOthers: packets meet the mode's rules before those of another proxy, which does not take
	// them over; Relinquish removes them.
	PrecedesOthers bool
	// OwnFlows: the mode translates connections itself, not in table nat.
	OwnFlows bool
	// BindsAddresses: addresses of Services become addresses of the node. It does not serve
	// those of other Nodes, because that would cut the node off from them.
	BindsAddresses bool
	// Advice, if not empty, is logged when a node starts to run the mode.
	Advice string
	// Matches are those of iptables that the mode needs in addition to the ones that every mode
	// needs.
	Matches []string
	// Metrics are the gauges of the mode, which have no series in other modes.
	Metrics []ObjectMetric
	Owns    Owned
}

// Owned names what a mode has in the kernel. A name that ends with * is a prefix.
type Owned struct {
	// Tables and Chains are those of iptables or nf_tables, chains with their table, as in
	// nat/KUBE-SERVICES. Modes may share chains.
	Tables, Chains []string
	Sets, Links    []string
	// Rules are those in shared and built-in chains by which the mode is recognized, besides rules
	// that lead to a chain of this mode alone or match a set of its own.
	Rules []SharedRule
	// Sysctls are the ones that the mode writes, with slashes.
	Sysctls []string
}

// SharedRule is a rule of a mode in a chain that it does not own alone.
type SharedRule struct {
	// Chain is named with its table.
	Chain string
	// Rule is as iptables-restore reads it, without "-A CHAIN". Comments do not matter.
	Rule string
	// First: it must precede the rules of other modes, because it concerns what these translate.
	First bool
}

// ObjectMetric is a gauge that counts kernel objects by IP family.
type ObjectMetric struct {
	Object Object
	// Name is the metric's after nodeproxy_agent_.
	Name, Help string
}

// OwnsLink reports whether the mode owns a network link.
func (d *Declaration) OwnsLink(name string) bool { return slices.Contains(d.Owns.Links, name) }

// Precedes reports whether packets meet the mode before the other one.
func (d *Declaration) Precedes(o *Declaration) bool { return d.Precedence < o.Precedence }

// Unserved reports whether the mode does not serve an address of a Service because it belongs
// to another Node, given this node's own addresses.
func (d *Declaration) Unserved(s *Service, own []netip.Addr, a netip.Addr) bool {
	return d.BindsAddresses && s.OfOther(a, own)
}

package dataplane

import (
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Declaration describes a mode: what is the same on all nodes. The package of its data plane
// declares it, and package modes lists all of them.
type Declaration struct {
	Mode v1alpha1.ProxyMode
	// Precedence orders modes by which of them a packet meets first if several are in the
	// kernel: the lower one decides. So it is what a change of modes goes by.
	Precedence int
	// Baseline: every node is expected to run the mode. It runs without being asked for
	// support, and a family that it cannot serve counts against no other mode. There is one.
	Baseline bool
	// OwnFlows: the mode translates connections by itself, not in table nat.
	OwnFlows bool
	// BindsAddresses: addresses of Services become addresses of the node. Those of other
	// Nodes are left to these, or the node would be cut off from them.
	BindsAddresses bool
	// Advice, if not empty, is logged when a node begins to run the mode.
	Advice string
	// Matches are those of iptables that the mode needs, besides the ones that every mode does.
	Matches []string
	// Metrics are the gauges of the mode, which have no series in other ones.
	Metrics []ObjectMetric
	Owns    Owned
}

// Owned is what a mode has in the kernel, by name. A name that ends with * stands for all
// that begin so.
type Owned struct {
	// Tables and Chains are those of iptables or nf_tables. A chain is named with its table, as
	// in nat/KUBE-SERVICES. Modes may share chains.
	Tables, Chains []string
	Sets, Links    []string
	// Rules are those in shared and built-in chains by which the mode is recognized. Rules that
	// lead to a chain of this mode alone, or match a set of its own, are recognized without.
	Rules []SharedRule
	// Sysctls are those that the mode writes, with slashes.
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

// OwnsLink reports whether a network link is the mode's.
func (d *Declaration) OwnsLink(name string) bool { return slices.Contains(d.Owns.Links, name) }

// Precedes reports whether packets meet the mode before the other one.
func (d *Declaration) Precedes(o *Declaration) bool { return d.Precedence < o.Precedence }

// Unserved reports whether the mode leaves an address of a Service to another Node, where own are
// this node's addresses.
func (d *Declaration) Unserved(s *Service, own []netip.Addr, a netip.Addr) bool {
	return d.BindsAddresses && s.OfOther(a, own)
}

package kernelmodel

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Packet is a packet that arrives at the node or leaves a process on it.
type Packet struct {
	// Protocol is tcp, udp or sctp.
	Protocol string
	Source   netip.Addr
	// In is the ingress interface. Empty: a process on the
	// node itself has sent it.
	In          string
	Destination netip.AddrPort
	// State is its conntrack state. Empty: NEW.
	State string
	// Bridged: it has come by a port of a bridge.
	Bridged bool
}

// Check returns an error for a packet that no model can trace.
func (p *Packet) Check() error {
	if !slices.Contains([]string{"tcp", "udp", "sctp"}, p.Protocol) || !p.Source.IsValid() || !p.Destination.IsValid() ||
		p.Source.BitLen() != p.Destination.Addr().BitLen() {
		return fmt.Errorf("no packet that can be traced: %+v", *p)
	}
	return nil
}

// Fate is how a packet ends.
type Fate string

// Fates of packets.
const (
	// Delivered: the destination was translated to an endpoint.
	Delivered Fate = "DELIVERED"
	// Rejected: discarded with an answer.
	Rejected Fate = "REJECT"
	// Dropped: discarded without an answer.
	Dropped Fate = "DROP"
	// Accepted: not translated, and a rule lets it pass.
	Accepted Fate = "ACCEPT"
	// Passed: no rule matches it.
	Passed Fate = "PASS"
)

// Targets of steps that are no chains.
const (
	Accept     = "ACCEPT"
	Drop       = "DROP"
	Reject     = "REJECT"
	Return     = "RETURN"
	Translate  = "DNAT"
	Masquerade = "MASQUERADE"
)

// StepKind is what a packet has met.
type StepKind string

// Kinds of steps.
const (
	// IPTablesRule is a rule of iptables that matched.
	IPTablesRule StepKind = ""
	// NFTablesRule is a rule of nf_tables that matched.
	NFTablesRule StepKind = "NFTablesRule"
	// Map and Set are lookups in maps and sets of nf_tables, whether they have the key or not.
	Map StepKind = "Map"
	Set StepKind = "Set"
	// VirtualServer is one of IPVS.
	VirtualServer StepKind = "VirtualServer"
)

// Step is what a packet has met on its way.
type Step struct {
	Kind StepKind `json:"kind,omitempty"`
	// Table is nat or filter of iptables, family and name of a table of nf_tables, or ipvs.
	Table string `json:"table"`
	// Chain is the rule's, the name of the map or set, or the virtual server's address.
	Chain string `json:"chain"`
	// Rule is the rule as the programs iptables-save and nft print it, without chain, the key that
	// was looked up, or what the virtual server does.
	Rule string `json:"rule"`
	// Target is where the packet goes on: a chain, or what ends its way through
	// the table, such as DNAT. Empty: at the next rule. For a lookup it is what was found; empty:
	// nothing.
	Target string `json:"target,omitempty"`
	// To is the new destination of a packet that is translated.
	To netip.AddrPort `json:"-"`
}

// IsLookup reports whether the step is a lookup in a map or a set.
func (s Step) IsLookup() bool { return s.Kind == Map || s.Kind == Set }

func (s Step) String() string {
	if s.IsLookup() {
		return fmt.Sprintf("%s %s: %s -> %s", strings.ToLower(string(s.Kind)), s.Chain, s.Rule, cmp.Or(s.Target, "not found"))
	}
	return s.Table + " " + s.Chain + " " + s.Rule
}

// Outcome is one of the possible outcomes of a packet.
type Outcome struct {
	Fate Fate
	// Endpoint is the new destination, if Delivered.
	Endpoint netip.AddrPort
	// Masqueraded: its source becomes an address of the node.
	Masqueraded bool
	// Share is how probable the outcome is, 0 to 1.
	Share float64
	// Path is what the packet has met, in order.
	Path []Step
	// Virtual is the destination before a virtual server translated it, if one did.
	Virtual netip.AddrPort
	// Effects are what the model that returned it remembers of such a connection, for its
	// Remember.
	Effects any
}

// Merge joins outcomes that are alike, and sorts them by endpoint.
func Merge(outcomes []Outcome) []Outcome {
	type identity struct {
		fate              Fate
		endpoint, virtual netip.AddrPort
		masqueraded       bool
	}
	var out []Outcome
	at := map[identity]int{}
	for _, o := range outcomes {
		id := identity{o.Fate, o.Endpoint, o.Virtual, o.Masqueraded}
		if i, found := at[id]; found {
			out[i].Share += o.Share
			continue
		}
		at[id] = len(out)
		out = append(out, o)
	}
	slices.SortStableFunc(out, func(a, b Outcome) int { return a.Endpoint.Compare(b.Endpoint) })
	return out
}

package kubeproxy

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Destination is what a packet is sent to.
type Destination struct {
	netip.AddrPort
	Protocol v1alpha1.Protocol
}

// String names it human-readable.
func (d Destination) String() string { return d.AddrPort.String() + "/" + string(d.Protocol) }

// Packet is the first packet of a connection.
type Packet struct {
	Destination
	Source netip.Addr
	// Interface is where it enters the node. Empty: a process of the node itself sends it.
	Interface string
	// LocalSource and LocalDestination report whether the node has these addresses.
	LocalSource, LocalDestination bool
}

// Fate is what becomes of a packet.
type Fate string

// Fates of packets.
const (
	Translated Fate = "translated"
	Rejected   Fate = "rejected"
	Dropped    Fate = "dropped"
	Ignored    Fate = "not handled"
	// Varies: it depends on chance.
	Varies Fate = "handled differently by chance"
)

// Outcome is what becomes of a packet.
type Outcome struct {
	Fate Fate
	// Shares are the probabilities of the endpoints to which it is translated.
	Shares     map[netip.AddrPort]float64
	Masquerade bool
	// AffinitySeconds is for how long the client keeps its endpoint; 0: it does not.
	AffinitySeconds int32
}

// Evenly returns the shares of endpoints that are chosen with equal probability.
func Evenly(endpoints []netip.AddrPort) map[netip.AddrPort]float64 {
	out := make(map[netip.AddrPort]float64, len(endpoints))
	for _, e := range endpoints {
		out[e] += 1 / float64(len(endpoints))
	}
	return out
}

// Equal reports whether packets are treated alike.
func (o Outcome) Equal(other Outcome) bool {
	const rounding = 1e-9
	return o.Fate == other.Fate && o.Masquerade == other.Masquerade && o.AffinitySeconds == other.AffinitySeconds &&
		maps.EqualFunc(o.Shares, other.Shares, func(a, b float64) bool { return math.Abs(a-b) < rounding })
}

// maxNamed bounds how many endpoints are named.
const maxNamed = 3

// String describes it human-readable.
func (o Outcome) String() string {
	if o.Fate != Translated {
		return string(o.Fate)
	}
	endpoints := slices.SortedFunc(maps.Keys(o.Shares), netip.AddrPort.Compare)
	even := !slices.ContainsFunc(endpoints, func(e netip.AddrPort) bool { return o.Shares[e] != o.Shares[endpoints[0]] })
	var names []string
	for _, e := range endpoints[:min(len(endpoints), maxNamed)] {
		name := e.String()
		if !even {
			name += fmt.Sprintf(" (%.0f%%)", 100*o.Shares[e])
		}
		names = append(names, name)
	}
	text := "translated to " + strings.Join(names, ", ")
	if more := len(endpoints) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if o.Masquerade {
		text += ", masqueraded"
	}
	if o.AffinitySeconds > 0 {
		text += fmt.Sprintf(", with session affinity for %d s", o.AffinitySeconds)
	}
	return text
}

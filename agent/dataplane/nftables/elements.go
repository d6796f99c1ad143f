package nftables

import (
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nft"
)

// change collects the elements that a batch deletes and adds, by set.
type change struct {
	deleted, added map[string][]nft.Element
}

func newChange() *change {
	return &change{map[string][]nft.Element{}, map[string][]nft.Element{}}
}

// replace replaces an element; nil: there is none.
func (c *change) replace(set string, before, after *nft.Element) {
	if before != nil {
		c.deleted[set] = append(c.deleted[set], *before)
	}
	if after != nil {
		c.added[set] = append(c.added[set], *after)
	}
}

// appendTo appends the change to a batch.
func (c *change) appendTo(b *nft.Batch, t nft.Table, sets []string) {
	for _, set := range sets {
		for i := range c.deleted[set] {
			b.DeleteElement(t, set, &c.deleted[set][i])
		}
	}
	for _, set := range sets {
		for i := range c.added[set] {
			b.AddElement(t, set, &c.added[set][i])
		}
	}
}

// bytes is a destination in keys of sets.
func (k key) bytes() []byte {
	b := appendPadded(make([]byte, 0, 32), k.Addr().AsSlice()...)
	return appendPort(appendPadded(b, protocolNumber(k.protocol)), k.Port())
}

func endpointData(e netip.AddrPort) []byte { return appendPort(e.Addr().AsSlice(), e.Port()) }

// verdict is what becomes of packets to a destination.
func (d *destination) verdict() nft.Verdict {
	if d.chain == (chain{}) {
		return nft.Drop()
	}
	return nft.Goto(d.chain.name())
}

// service is the element of the map of Services.
func (d *destination) service(name dataplane.ServiceName) *nft.Element {
	comment := name.String()
	if d.port != "" {
		comment += ":" + d.port
	}
	return &nft.Element{Key: d.key.bytes(), Verdict: d.verdict(), Comment: comment}
}

// replaceDestination changes the elements of a destination; nil: there is none. The endpoints of
// after are in the order in which they are to be.
// It belonged to the Service was, and belongs to the Service is.
func (c *change) replaceDestination(was, is dataplane.ServiceName, before, after *destination) {
	var from, to *nft.Element
	if before != nil {
		from = before.service(was)
	}
	if after != nil {
		to = after.service(is)
	}
	if from == nil || to == nil || from.Verdict != to.Verdict || from.Comment != to.Comment {
		c.replace(setServices, from, to)
	}
	var none destination
	if before == nil {
		before = &none
	}
	bytes := before.key.bytes()
	if after == nil {
		after = &none
	} else {
		bytes = after.key.bytes()
	}
	c.replaceEndpoints(setEndpoints, bytes, before.endpoints, after.endpoints)
	c.replaceEndpoints(setLocal, bytes, before.local, after.local)
	if before.circuit != after.circuit {
		of := func(to chain) *nft.Element {
			if to == (chain{}) {
				return nil
			}
			return &nft.Element{Key: bytes, Verdict: nft.Goto(to.name())}
		}
		c.replace(setCircuit, of(before.circuit), of(after.circuit))
	}
	if !slices.Equal(before.ranges, after.ranges) {
		for _, r := range merged(before.ranges) {
			c.replace(setRanges, rangeElement(bytes, r), nil)
		}
		for _, r := range merged(after.ranges) {
			c.replace(setRanges, nil, rangeElement(bytes, r))
		}
	}
	if before.affinity != after.affinity {
		if before.affinity != 0 {
			c.replace(affineSet(before.affinity), &nft.Element{Key: bytes}, nil)
		}
		if after.affinity != 0 {
			c.replace(affineSet(after.affinity), nil, &nft.Element{Key: bytes})
		}
	}
}

func (c *change) replaceEndpoints(set string, k []byte, was, is []netip.AddrPort) {
	for i := range max(len(was), len(is)) {
		var from, to *nft.Element
		switch {
		case i < len(was) && i < len(is) && was[i] == is[i]:
			continue
		case i < len(was):
			from = &nft.Element{Key: indexed(k, i)}
		}
		if i < len(is) {
			to = &nft.Element{Key: indexed(k, i), Data: endpointData(is[i])}
		}
		c.replace(set, from, to)
	}
}

// merged are ranges without those inside others: the kernel takes no ranges that overlap.
func merged(ranges []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range slices.SortedFunc(slices.Values(ranges), netip.Prefix.Compare) {
		if n := len(out); n > 0 && out[n-1].Overlaps(r) { // the wider one comes first
			continue
		}
		out = append(out, r.Masked())
	}
	return out
}

func rangeElement(k []byte, r netip.Prefix) *nft.Element {
	first := r.Addr().AsSlice()
	last := slices.Clone(first)
	for i := range last {
		bits := min(max(r.Bits()-8*i, 0), 8)
		last[i] |= byte(0xff >> bits)
	}
	return &nft.Element{Key: slices.Concat(k, first), End: slices.Concat(k, last)}
}

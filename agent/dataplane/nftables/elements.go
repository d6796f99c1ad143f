package nftables

import (
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// change collects the elements that a batch deletes and adds, by set.
type change struct {
	deleted, added map[string][]nft.Element
}

func newChange() *change {
	return &change{map[string][]nft.Element{}, map[string][]nft.Element{}}
}

// reset empties the change and retains its memory.
func (c *change) reset() {
	for _, of := range []map[string][]nft.Element{c.deleted, c.added} {
		for set, elements := range of {
			of[set] = elements[:0]
		}
	}
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
func (c *change) appendTo(b *nft.Batch, t nft.Table, sets []string) { appendChanges(b, t, sets, c) }

// appendChanges appends changes to a batch, set by set, so that elements share messages.
func appendChanges(b *nft.Batch, t nft.Table, sets []string, changes ...*change) {
	for _, set := range sets {
		for _, c := range changes {
			for i := range c.deleted[set] {
				b.DeleteElement(t, set, &c.deleted[set][i])
			}
		}
	}
	for _, set := range sets {
		for _, c := range changes {
			for i := range c.added[set] {
				b.AddElement(t, set, &c.added[set][i])
			}
		}
	}
}

// bytes is a destination in keys of sets.
func (k key) bytes() []byte {
	b := appendPadded(make([]byte, 0, 32), k.Addr().AsSlice()...)
	return appendPort(appendPadded(b, dataplane.ProtocolNumber(k.protocol)), k.Port())
}

// addressKey is an address as a key of a set of addresses.
func addressKey(set string, a netip.Addr) []byte {
	if set == setHairpin {
		return slices.Concat(a.AsSlice(), a.AsSlice())
	}
	return a.AsSlice()
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
	c.replaceRanges(bytes, before.ranges, after.ranges)
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

// replaceRanges replaces the source ranges of a destination.
func (c *change) replaceRanges(k []byte, was, is []netip.Prefix) {
	for len(was)+len(is) > 0 {
		switch {
		case len(is) == 0 || len(was) > 0 && was[0].Compare(is[0]) < 0:
			c.replace(rangesSet(was[0].Bits()), rangeElement(k, was[0].Addr()), nil)
			was = was[1:]
		case len(was) == 0 || was[0] != is[0]:
			c.replace(rangesSet(is[0].Bits()), nil, rangeElement(k, is[0].Addr()))
			is = is[1:]
		default:
			was, is = was[1:], is[1:]
		}
	}
}

func rangeElement(k []byte, network netip.Addr) *nft.Element {
	return &nft.Element{Key: slices.Concat(k, network.AsSlice())}
}

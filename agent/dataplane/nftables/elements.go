package nftables

import (
	"net/netip"
	"slices"

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
func (d *destination) service(name string) *nft.Element {
	comment := name
	if d.port != "" {
		comment += ":" + d.port
	}
	return &nft.Element{Key: d.key.bytes(), Verdict: d.verdict(), Comment: comment}
}

// replaceDestination changes the elements of a destination; nil: there is none. The endpoints of
// after are in the order in which they are to be.
func (c *change) replaceDestination(name string, before, after *destination) {
	var none destination
	was, is := before, after
	if was == nil {
		was = &none
	}
	if is == nil {
		is = &none
	}
	if before == nil || after == nil || was.chain != is.chain || was.port != is.port {
		var from, to *nft.Element
		if before != nil {
			from = before.service(name)
		}
		if after != nil {
			to = after.service(name)
		}
		c.replace(setServices, from, to)
	}
	k := is.key
	if after == nil {
		k = was.key
	}
	bytes := k.bytes()
	c.replaceEndpoints(setEndpoints, bytes, was.endpoints, is.endpoints)
	c.replaceEndpoints(setLocal, bytes, was.local, is.local)
	if was.circuit != is.circuit {
		of := func(to chain) *nft.Element {
			if to == (chain{}) {
				return nil
			}
			return &nft.Element{Key: bytes, Verdict: nft.Goto(to.name())}
		}
		c.replace(setCircuit, of(was.circuit), of(is.circuit))
	}
	if !slices.Equal(was.ranges, is.ranges) {
		for _, r := range merged(was.ranges) {
			c.replace(setRanges, rangeElement(bytes, r), nil)
		}
		for _, r := range merged(is.ranges) {
			c.replace(setRanges, nil, rangeElement(bytes, r))
		}
	}
	if was.affinity != is.affinity {
		if was.affinity != 0 {
			c.replace(affineSet(was.affinity), &nft.Element{Key: bytes}, nil)
		}
		if is.affinity != 0 {
			c.replace(affineSet(is.affinity), nil, &nft.Element{Key: bytes})
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

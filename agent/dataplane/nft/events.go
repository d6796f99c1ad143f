package nft

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// Commit is a batch of a program, as the kernel reports it.
type Commit struct {
	// Generation is that of all tables after it.
	Generation uint32
	// Port identifies the socket that sent it: see Conn.Port.
	Port uint32
	// By is the program, human-readable; empty: unknown.
	By string
	// Removed: it has removed something, not only added.
	Removed bool
	// Changes are what has changed of what is followed. Only with Events.Ours.
	Changes *Changes
}

// Changes are what batches have changed of tables.
type Changes struct {
	// Elements were added, removed or replaced; at most MaxElements.
	Elements []ElementID
	// Whole are sets of which too many elements have changed for Elements, which has none of theirs.
	Whole []string
	// Rules: tables, chains or rules have changed. Sets: sets have; Elements and Whole may lack something then.
	Rules, Sets bool
}

// ElementID identifies an element of a table.
type ElementID struct{ Set, Key string }

// MaxElements bounds Changes.Elements.
const MaxElements = 512

// None reports whether nothing has changed.
func (c *Changes) None() bool { return len(c.Elements)+len(c.Whole) == 0 && !c.Rules && !c.Sets }

// Add adds other changes.
func (c *Changes) Add(other *Changes) {
	c.Rules, c.Sets = c.Rules || other.Rules, c.Sets || other.Sets
	for _, set := range other.Whole {
		c.addWhole(set)
	}
	for _, e := range other.Elements {
		c.add(e)
	}
}

func (c *Changes) add(e ElementID) {
	if c.Sets || slices.Contains(c.Whole, e.Set) {
		return
	}
	if len(c.Elements) < MaxElements {
		c.Elements = append(c.Elements, e)
		return
	}
	c.addWhole(c.largest())
	c.add(e)
}

// largest is the set that has the most of the elements.
func (c *Changes) largest() (set string) {
	counts := map[string]int{}
	for _, e := range c.Elements {
		if counts[e.Set]++; counts[e.Set] > counts[set] {
			set = e.Set
		}
	}
	return set
}

func (c *Changes) addWhole(set string) {
	if slices.Contains(c.Whole, set) {
		return
	}
	c.Whole = append(c.Whole, set)
	if c.Elements = slices.DeleteFunc(c.Elements, func(e ElementID) bool { return e.Set == set }); len(c.Elements) == 0 {
		c.Elements = nil
	}
}

// note notes an event.
func (c *Changes) note(m message) {
	switch m.kind {
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		if c.Sets {
			return
		}
		set := ""
		for kind, value := range nlattr.All(m.body) {
			if kind == unix.NFTA_SET_ELEM_LIST_SET { // precedes the elements
				set = nlattr.Text(value)
			}
		}
		if !slices.Contains(c.Whole, set) {
			parseElements(m.body, func(e *Element) { c.add(ElementID{set, string(e.Key)}) })
		}
	case unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET:
		c.Sets = true
	default:
		c.Rules = true
	}
}

// Events reads what the kernel reports about batches: an event for everything that has changed,
// then one that ends the batch. A batch may be reported in several datagrams.
type Events struct {
	// Family is that of the tables which are followed: unix.NFPROTO_IPV4 or unix.NFPROTO_IPV6.
	Family byte
	// Touches reports whether an event of the family, one of unix.NFT_MSG_* with its attributes, is
	// about something that is followed.
	Touches func(kind uint16, attributes []byte) bool
	// Ours, if not nil, reports whether the batches of a socket change nothing that is followed. Then all
	// batches are reported, with their Changes.
	Ours func(port uint32) bool
	// touched: the batch of which events arrive has changed something; removed: it has removed
	// something.
	touched, removed bool
	changes          *Changes
}

// Read reads a datagram. It yields the batches that end in it and have changed something that is
// followed.
func (e *Events) Read(datagram []byte) iter.Seq[Commit] {
	return func(yield func(Commit) bool) {
		for m := range messages(datagram) {
			if m.subsystem != unix.NFNL_SUBSYS_NFTABLES {
				continue
			}
			if m.kind != unix.NFT_MSG_NEWGEN {
				if m.family == e.Family {
					e.note(m)
				}
				continue
			}
			c, touched := commitOf(m), e.touched
			c.Removed, c.Changes = e.removed, e.changes
			if e.Ours != nil && c.Changes == nil {
				c.Changes = &Changes{}
			}
			e.Lost()
			if (touched || e.Ours != nil) && !yield(c) {
				return
			}
		}
	}
}

// note notes an event of the family.
func (e *Events) note(m message) {
	known := e.touched && (e.removed || !removes(m.kind))
	if e.Ours == nil && known || e.Ours != nil && e.Ours(m.port) || !e.Touches(m.kind, m.body) {
		return
	}
	e.touched, e.removed = true, e.removed || removes(m.kind)
	if e.Ours != nil {
		if e.changes == nil {
			e.changes = &Changes{}
		}
		e.changes.note(m)
	}
}

// Lost notes that events have been lost, which may have been the end of a batch.
func (e *Events) Lost() { e.touched, e.removed, e.changes = false, false, nil }

// Of is what Events.Touches is for a single table.
func (t Table) Of(_ uint16, attributes []byte) bool {
	for kind, value := range nlattr.All(attributes) {
		if kind == unix.NFTA_TABLE_NAME { // the first attribute of all events
			return nlattr.Text(value) == t.Name
		}
	}
	return false
}

func removes(kind uint16) bool {
	switch kind {
	case unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELSET, unix.NFT_MSG_DELSETELEM:
		return true
	}
	return false
}

func commitOf(m message) Commit {
	c := Commit{Port: m.port}
	var pid uint32
	var program string
	for kind, value := range nlattr.All(m.body) {
		switch kind {
		case unix.NFTA_GEN_ID:
			c.Generation = number(value)
		case unix.NFTA_GEN_PROC_PID:
			pid = number(value)
		case unix.NFTA_GEN_PROC_NAME:
			program = nlattr.Text(value)
		}
	}
	if program != "" {
		c.By = fmt.Sprintf("%s, PID %d", program, pid)
	}
	return c
}

// message is a netlink message.
type message struct {
	subsystem, kind uint16
	flags           uint16
	sequence, port  uint32
	family          byte
	// body is what follows the headers: for netfilter's messages their attributes.
	body []byte
}

// headerLength and familyLength are the lengths of the headers of a message: netlink's, and
// netfilter's.
const (
	headerLength = unix.SizeofNlMsghdr
	familyLength = 4
)

// messages yields the messages in a datagram, as far as they are whole.
func messages(datagram []byte) iter.Seq[message] {
	return func(yield func(message) bool) {
		for len(datagram) >= headerLength {
			size := int(binary.NativeEndian.Uint32(datagram))
			if size < headerLength || size > len(datagram) {
				return
			}
			kind := binary.NativeEndian.Uint16(datagram[4:])
			m := message{
				subsystem: kind >> 8, kind: kind & 0xff, flags: binary.NativeEndian.Uint16(datagram[6:]),
				sequence: binary.NativeEndian.Uint32(datagram[8:]), port: binary.NativeEndian.Uint32(datagram[12:]),
				body: datagram[headerLength:size],
			}
			datagram = datagram[min((size+3)&^3, len(datagram)):]
			if m.subsystem != 0 {
				if len(m.body) < familyLength {
					continue
				}
				m.family, m.body = m.body[0], m.body[familyLength:]
			}
			if !yield(m) {
				return
			}
		}
	}
}

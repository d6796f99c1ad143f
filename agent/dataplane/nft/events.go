package nft

import (
	"encoding/binary"
	"fmt"
	"iter"

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
}

// Events reads what the kernel reports about batches: an event for everything that has changed,
// then one that ends the batch. A batch may be reported in several datagrams.
type Events struct {
	// Family is that of the tables which are followed: unix.NFPROTO_IPV4 or unix.NFPROTO_IPV6.
	Family byte
	// Touches reports whether an event of the family, one of unix.NFT_MSG_* with its attributes, is
	// about something that is followed.
	Touches func(kind uint16, attributes []byte) bool
	// touched: the batch of which events arrive has changed something; removed: it has removed
	// something.
	touched, removed bool
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
				if m.family == e.Family && (!e.touched || !e.removed && removes(m.kind)) && e.Touches(m.kind, m.body) {
					e.touched, e.removed = true, e.removed || removes(m.kind)
				}
				continue
			}
			c, touched := commitOf(m), e.touched
			c.Removed = e.removed
			e.touched, e.removed = false, false
			if touched && !yield(c) {
				return
			}
		}
	}
}

// Lost notes that events have been lost, which may have been the end of a batch.
func (e *Events) Lost() { e.touched, e.removed = false, false }

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

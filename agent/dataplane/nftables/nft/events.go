package nft

import (
	"encoding/binary"
	"fmt"
	"iter"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// Commit is a batch of a program that has changed a table.
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
// then one that ends the batch. The zero value reports no table.
type Events struct {
	Table Table
	// touched: the batch of which events arrive has changed the table; removed: it has removed
	// something from it.
	touched, removed bool
}

// Read reads a datagram. It yields the batches that end in it and have changed the table.
func (e *Events) Read(datagram []byte) iter.Seq[Commit] {
	return func(yield func(Commit) bool) {
		for m := range messages(datagram) {
			if m.subsystem != unix.NFNL_SUBSYS_NFTABLES {
				continue
			}
			if m.kind != unix.NFT_MSG_NEWGEN {
				if m.family == e.Table.Family && tableOf(m.body) == e.Table.Name {
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

// tableOf is the table of an event: the first attribute of all of them.
func tableOf(body []byte) string {
	for kind, value := range nlattr.All(body) {
		if kind == unix.NFTA_TABLE_NAME {
			return nlattr.Text(value)
		}
	}
	return ""
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
		c.By = fmt.Sprintf("%s (process %d)", program, pid)
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

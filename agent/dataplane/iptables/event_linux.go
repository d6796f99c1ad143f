package iptables

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// Sizes of the headers of a netlink message of netfilter.
const (
	messageHeader = unix.SizeofNlMsghdr
	familyHeader  = nl.SizeofNfgenmsg
)

// commit is a transaction of nf_tables as reported by its events.
type commit struct {
	generation uint32
	port       uint32 // of the writer's netlink socket
	by         string // the writer, human-readable
	removed    bool   // it has removed something of ours
}

// events reads what the nf_tables kernel reports about transactions: an event for
// everything that has changed, then one that ends the transaction.
type events struct {
	family dataplane.Family
	modes  *ownership
	// touched: the current transaction has changed something of ours;
	// removed: it has removed some of that.
	touched, removed bool
}

// read reads a datagram. It yields the transactions, including our own, that end in it and have
// changed something of ours.
func (e *events) read(datagram []byte) iter.Seq[commit] {
	return func(yield func(commit) bool) {
		for len(datagram) >= messageHeader {
			size := int(binary.NativeEndian.Uint32(datagram))
			if size < messageHeader || size > len(datagram) {
				return
			}
			kind := binary.NativeEndian.Uint16(datagram[4:])
			port := binary.NativeEndian.Uint32(datagram[12:])
			body := datagram[messageHeader:size]
			datagram = datagram[min((size+3)&^3, len(datagram)):]
			if kind>>8 != unix.NFNL_SUBSYS_NFTABLES || len(body) < familyHeader {
				continue
			}
			family, body := body[0], body[familyHeader:]
			if kind&0xff != unix.NFT_MSG_NEWGEN {
				if kind := int(kind & 0xff); family == e.number() && (!e.touched || !e.removed && removes(kind)) && e.modes.touches(kind, body) {
					e.touched, e.removed = true, e.removed || removes(kind)
				}
				continue
			}
			if c := ending(port, body); e.touched {
				c.removed = e.removed
				e.touched, e.removed = false, false
				if !yield(c) {
					return
				}
			}
		}
	}
}

// lost notes that events have been lost, which may have been the end of the current transaction.
func (e *events) lost() { e.touched, e.removed = false, false }

func (e *events) number() byte {
	if e.family == dataplane.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// ending reads the event that ends a transaction.
func ending(port uint32, body []byte) commit {
	out := commit{port: port}
	var process uint32
	name := ""
	for kind, value := range nlattr.All(body) {
		switch {
		case kind == unix.NFTA_GEN_ID && len(value) >= 4:
			out.generation = binary.BigEndian.Uint32(value)
		case kind == unix.NFTA_GEN_PROC_PID && len(value) >= 4:
			process = binary.BigEndian.Uint32(value)
		case kind == unix.NFTA_GEN_PROC_NAME:
			name = nlattr.Text(value)
		}
	}
	if name != "" {
		out.by = fmt.Sprintf("%s, PID %d", name, process)
	}
	return out
}

// removes reports whether events of a kind report removals.
func removes(kind int) bool {
	return kind == unix.NFT_MSG_DELRULE || kind == unix.NFT_MSG_DELCHAIN || kind == unix.NFT_MSG_DELTABLE
}

// touches reports whether an event reports a change of something of ours. In built-in chains that
// is the removal of our jumps only.
func (o *ownership) touches(kind int, body []byte) bool {
	var id chainID
	place := [2]uint16{unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN}
	switch kind {
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		place[1] = unix.NFTA_CHAIN_NAME
	case unix.NFT_MSG_DELTABLE:
		place[1] = 0
	default:
		return false
	}
	var expressions []byte
	for kind, value := range nlattr.All(body) {
		switch {
		case kind == place[0]:
			id.table = nlattr.Text(value)
		case kind == place[1]:
			id.name = nlattr.Text(value)
		case kind == unix.NFTA_RULE_EXPRESSIONS:
			expressions = value
		}
	}
	switch {
	case id.table != nat && id.table != filter:
		return false
	case kind == unix.NFT_MSG_DELTABLE || o.own.has(id):
		return true
	case !removes(kind):
		return false
	case slices.Contains(o.joined, id.name):
		return true
	default:
		return hooked[id] && (kind == unix.NFT_MSG_DELCHAIN || expressions == nil || o.namesOurs(expressions))
	}
}

package iptables

import (
	"encoding/binary"
	"fmt"
	"iter"

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

// commit is a transaction of nf_tables as its events tell of it.
type commit struct {
	generation uint32
	port       uint32 // of the netlink socket of who has written it
	by         string // who that is, human-readable
	removed    bool   // it has removed something from what is ours
}

// events reads what the nf_tables kernel reports about transactions: an event for
// everything that has changed, then one that ends the transaction.
type events struct {
	family dataplane.Family
	owner  owner
	// touched: the transaction that is being told of has changed what is ours;
	// removed: it has removed something from that.
	touched, removed bool
}

// read reads a datagram. It yields the transactions that end in it and have
// changed what is ours, whoever has written them.
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
				if kind := int(kind & 0xff); family == e.number() && (!e.touched || !e.removed && removes(kind)) && e.owner.touches(kind, body) {
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

// lost notes that events have been lost: of some transaction they may have told
// that it has changed what is ours.
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

// removes reports whether events of a kind tell of something that is gone.
func removes(kind int) bool {
	switch kind {
	case unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELTABLE:
		return true
	default:
		return false
	}
}

// touches reports whether an event tells that what is ours has changed. Others
// may do in the built-in chains what they like but remove our jumps.
func (o owner) touches(kind int, body []byte) bool {
	named := [2]string{} // the table, and the chain in it
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
			named[0] = nlattr.Text(value)
		case kind == place[1]:
			named[1] = nlattr.Text(value)
		case kind == unix.NFTA_RULE_EXPRESSIONS:
			expressions = value
		}
	}
	id := chainID{nat, named[1]}
	switch named[0] {
	case nat.String():
	case filter.String():
		id.table = filter
	default:
		return false
	}
	switch {
	case kind == unix.NFT_MSG_DELTABLE || o.owns(id):
		return true
	case !removes(kind):
		return false
	case kind == unix.NFT_MSG_DELCHAIN:
		return isHooked(id) || o.adds(id)
	case !isHooked(id):
		return o.adds(id)
	default:
		return expressions == nil || o.namesTarget(expressions)
	}
}

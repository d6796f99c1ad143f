package iptables

import (
	"encoding/binary"
	"slices"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// FuzzEvents reads a datagram of nf_tables events. Transactions may not depend on
// how messages are spread over datagrams, and an independent reading of the
// messages must explain each.
func FuzzEvents(f *testing.F) {
	f.Add(append(ruleEvent(unix.NFT_MSG_DELRULE, "nat", chainServices, "x"), generationEvent(99, 7)...))
	f.Add(append(chainEvent(unix.NFT_MSG_NEWCHAIN, "filter", chainForward), generationEvent(1, 1)...))
	f.Add(slices.Concat(ruleEvent(unix.NFT_MSG_DELRULE, "nat", chainServices, "x"), generationEvent(5, 1), generationEvent(6, 2)))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
			whole := events(family, declared)
			got := slices.Collect(whole.Read(datagram))
			messages, err := syscall.ParseNetlinkMessage(datagram)
			if err != nil {
				continue // cut off: no panic is all there is to check
			}
			var single []nft.Commit
			e := events(family, declared)
			for _, m := range messages {
				single = append(single, slices.Collect(e.Read(messageBytes(&m)))...)
			}
			explain(t, got, messages, e.Family)
			end := generationEvent(7, 7) // of a transaction that has not ended
			got, single = slices.AppendSeq(got, whole.Read(end)), slices.AppendSeq(single, e.Read(end))
			if !slices.Equal(got, single) {
				t.Errorf("%s: %+v from one datagram, %+v from one for each message", family, got, single)
			}
		}
	})
}

// messageBytes is a message in a datagram of its own.
func messageBytes(m *syscall.NetlinkMessage) []byte {
	out := binary.NativeEndian.AppendUint32(nil, m.Header.Len)
	out = binary.NativeEndian.AppendUint16(out, m.Header.Type)
	out = binary.NativeEndian.AppendUint16(out, m.Header.Flags)
	out = binary.NativeEndian.AppendUint32(out, m.Header.Seq)
	out = binary.NativeEndian.AppendUint32(out, m.Header.Pid)
	return append(out, m.Data...)
}

// explain checks that each commit is a generation message, in order, after a change
// of a table nat or filter of the family that belongs to the same transaction.
func explain(t *testing.T, got []nft.Commit, messages []syscall.NetlinkMessage, family byte) {
	t.Helper()
	touched, removed := false, false
	for _, m := range messages {
		if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < nl.SizeofNfgenmsg {
			continue
		}
		switch kind := m.Header.Type & 0xff; kind {
		case unix.NFT_MSG_NEWGEN:
			if len(got) > 0 && got[0].Port == m.Header.Pid && touched && (removed || !got[0].Removed) {
				got = got[1:]
			}
			touched, removed = false, false
		case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELTABLE:
			if m.Data[0] == family && namesTable(m.Data[nl.SizeofNfgenmsg:]) {
				touched = true
				removed = removed || kind == unix.NFT_MSG_DELRULE || kind == unix.NFT_MSG_DELCHAIN || kind == unix.NFT_MSG_DELTABLE
			}
		}
	}
	if len(got) > 0 {
		t.Errorf("no messages explain %+v", got)
	}
}

// namesTable reports whether a message is about a table that may be ours. A body
// that the library cannot read to its end may be about any.
func namesTable(body []byte) bool {
	if len(body)%4 != 0 {
		return true // the kernel pads; the library panics without
	}
	attributes, err := nl.ParseRouteAttr(body)
	if err != nil {
		return true
	}
	return slices.ContainsFunc(attributes, func(a syscall.NetlinkRouteAttr) bool {
		name := nl.BytesToString(append(slices.Clone(a.Value), 0))
		return a.Attr.Type&nl.NLA_TYPE_MASK == unix.NFTA_RULE_TABLE && (name == "nat" || name == "filter")
	})
}

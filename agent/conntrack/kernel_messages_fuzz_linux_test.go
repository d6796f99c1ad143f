package conntrack

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// FuzzParseFlow reads bytes as a flow. One that is read must come back from the
// attributes that describe it, and be deleted by a message that names its tuple and ID.
func FuzzParseFlow(f *testing.F) {
	f.Add(entry(unix.IPPROTO_UDP, nil, nlattr.Append(nil, nl.CTA_ID, []byte{0, 0, 0, 7})))
	f.Fuzz(func(t *testing.T, message []byte) {
		flow, ok := parseFlow(message)
		if !ok {
			return
		}
		if flow.Source.Addr().Is4() != flow.Destination.Addr().Is4() || flow.ReplySource.Addr().Is4() != flow.ReplyDestination.Addr().Is4() {
			t.Errorf("a flow between families: %+v", flow)
		}
		if again, ok := parseFlow(described(flow)); !ok || again != flow {
			t.Errorf("%+v comes back as %+v, %t", flow, again, ok)
		}
		var source, destination netip.AddrPort
		var protocol v1alpha1.Protocol
		var id uint32
		attributes, err := readByLibrary(deleteMessage(flow))
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range attributes {
			switch a.Attr.Type &^ (nlattr.Nested | nlattr.NetByteOrder) {
			case nl.CTA_TUPLE_ORIG:
				source, destination, protocol, _ = parseTuple(a.Value)
			case nl.CTA_ID:
				id = binary.BigEndian.Uint32(a.Value)
			}
		}
		if source != flow.Source || destination != flow.Destination || protocol != flow.Protocol || id != flow.ID {
			t.Errorf("to delete %+v, %s %s to %s with ID %d is named", flow, protocol, source, destination, id)
		}
	})
}

// described is what the kernel sends of a flow.
func described(f Flow) []byte {
	number := dataplane.ProtocolNumber(f.Protocol)
	status := uint32(statusDestinationNAT)
	if f.OutsideNAT {
		status = 0
	}
	b := headerOf(dataplane.IPv4)
	b = nlattr.Append(b, nl.CTA_TUPLE_ORIG|nlattr.Nested, tupleOf(number, f.Source, f.Destination))
	b = nlattr.Append(b, nl.CTA_TUPLE_REPLY|nlattr.Nested, tupleOf(number, f.ReplySource, f.ReplyDestination))
	b = nlattr.Append(b, nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, status))
	b = nlattr.Append(b, nl.CTA_PROTOINFO|nlattr.Nested, nlattr.Append(nil, nl.CTA_PROTOINFO_TCP|nlattr.Nested, nlattr.Append(nil, nl.CTA_PROTOINFO_TCP_STATE, []byte{nl.TCP_CONNTRACK_SYN_SENT})))
	return nlattr.Append(b, nl.CTA_ID, binary.BigEndian.AppendUint32(nil, f.ID))
}

// FuzzCounters reads bytes as a CPU's counters, and compares the sums with those of
// the standard library's reading of the attributes.
func FuzzCounters(f *testing.F) {
	f.Add(nlattr.Append(nlattr.Append(headerOf(dataplane.IPv4), attrStatsDrop, []byte{0, 0, 1, 0}), attrStatsEarlyDrop, []byte{255, 255, 255, 255}))
	f.Fuzz(func(t *testing.T, message []byte) {
		var got, want Counters
		got.add(message)
		if len(message) < nl.SizeofNfgenmsg || len(message)%4 != 0 {
			return // the kernel pads; the library panics without
		}
		attributes, err := readByLibrary(message)
		if err != nil {
			return // cut off: no panic is all there is to check
		}
		for _, a := range attributes {
			if len(a.Value) != 4 {
				continue
			}
			value := int64(binary.BigEndian.Uint32(a.Value))
			switch a.Attr.Type &^ (nlattr.Nested | nlattr.NetByteOrder) {
			case attrStatsInsertFailed:
				want.InsertFailed += value
			case attrStatsDrop:
				want.Drop += value
			case attrStatsEarlyDrop:
				want.EarlyDrop += value
			}
		}
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

// readByLibrary reads a message's attributes as the standard library does those of a
// message about an address, which differs by its header alone.
func readByLibrary(message []byte) ([]syscall.NetlinkRouteAttr, error) {
	return syscall.ParseNetlinkRouteAttr(&syscall.NetlinkMessage{
		Header: syscall.NlMsghdr{Type: syscall.RTM_NEWADDR},
		Data:   append(make([]byte, syscall.SizeofIfAddrmsg), message[nl.SizeofNfgenmsg:]...),
	})
}

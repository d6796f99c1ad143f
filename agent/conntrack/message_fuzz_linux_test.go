package conntrack

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// FuzzParseFlow reads bytes as a flow. One that is read must come back from the
// attributes that describe it, and be deleted by a message that names its tuple and ID.
func FuzzParseFlow(f *testing.F) {
	f.Add(entry(protocolUDP, nil, nlattr.Append(nil, attrID, []byte{0, 0, 0, 7})))
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
			case attrTupleOrig:
				source, destination, protocol, _ = parseTuple(a.Value)
			case attrID:
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
	number := numberOf(f.Protocol)
	status := uint32(statusDestinationNAT)
	if f.OutsideNAT {
		status = 0
	}
	b := header(dataplane.IPv4)
	b = nlattr.Append(b, attrTupleOrig|nlattr.Nested, tupleOf(number, f.Source.String(), f.Destination.String()))
	b = nlattr.Append(b, attrTupleReply|nlattr.Nested, tupleOf(number, f.ReplySource.String(), f.ReplyDestination.String()))
	b = nlattr.Append(b, attrStatus, binary.BigEndian.AppendUint32(nil, status))
	b = nlattr.Append(b, attrProtoInfo|nlattr.Nested, nlattr.Append(nil, attrProtoInfoTCP|nlattr.Nested, nlattr.Append(nil, attrTCPState, []byte{stateSYNSent})))
	return nlattr.Append(b, attrID, binary.BigEndian.AppendUint32(nil, f.ID))
}

// FuzzCounters reads bytes as a CPU's counters, and compares the sums with those of
// the standard library's reading of the attributes.
func FuzzCounters(f *testing.F) {
	f.Add(nlattr.Append(nlattr.Append(header(dataplane.IPv4), attrStatsDrop, []byte{0, 0, 1, 0}), attrStatsEarlyDrop, []byte{255, 255, 255, 255}))
	f.Fuzz(func(t *testing.T, message []byte) {
		var got, want Counters
		got.add(message)
		if len(message) < headerLength || len(message)%4 != 0 {
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
		Data:   append(make([]byte, syscall.SizeofIfAddrmsg), message[headerLength:]...),
	})
}

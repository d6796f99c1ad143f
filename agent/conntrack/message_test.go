package conntrack

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func tupleOf(protocol byte, source, destination string, more ...[]byte) []byte {
	src, dst := netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination)
	proto := nlattr.Append(nil, attrProtoNumber, []byte{protocol})
	proto = nlattr.Append(proto, attrProtoSrcPort, binary.BigEndian.AppendUint16(nil, src.Port()))
	proto = nlattr.Append(proto, attrProtoDstPort, binary.BigEndian.AppendUint16(nil, dst.Port()))
	ip := appendAddress(appendAddress(nil, true, src.Addr()), false, dst.Addr())
	return slices.Concat(append([][]byte{nlattr.Append(nil, attrTupleIP|nlattr.Nested, ip), nlattr.Append(nil, attrTupleProto|nlattr.Nested, proto)}, more...)...)
}

// entry is what the kernel sends of a flow of 10.244.7.7, with more attributes.
func entry(protocol byte, inTuple []byte, more ...[]byte) []byte {
	b := header(dataplane.IPv4)
	b = nlattr.Append(b, attrTupleOrig|nlattr.Nested, tupleOf(protocol, "10.244.7.7:40000", "10.96.0.10:53", inTuple))
	b = nlattr.Append(b, attrTupleReply|nlattr.Nested, tupleOf(protocol, "10.244.0.3:5353", "10.244.7.7:40000"))
	return slices.Concat(append([][]byte{b}, more...)...)
}

func TestParseFlow(t *testing.T) {
	want := Flow{Protocol: v1alpha1.ProtocolUDP,
		Source: netip.MustParseAddrPort("10.244.7.7:40000"), Destination: netip.MustParseAddrPort("10.96.0.10:53"),
		ReplySource: netip.MustParseAddrPort("10.244.0.3:5353"), ReplyDestination: netip.MustParseAddrPort("10.244.7.7:40000"), ID: 7,
	}
	id := nlattr.Append(nil, attrID, []byte{0, 0, 0, 7})
	status := func(n uint16) []byte {
		return nlattr.Append(nil, attrStatus, binary.BigEndian.AppendUint32(nil, uint32(n)))
	}
	tcp := func(state byte) []byte {
		return nlattr.Append(nil, attrProtoInfo|nlattr.Nested, nlattr.Append(nil, attrProtoInfoTCP|nlattr.Nested, nlattr.Append(nil, attrTCPState, []byte{state})))
	}
	zone := func(n byte) []byte { return nlattr.Append(nil, attrZone, []byte{0, n}) }
	tupleZone := func(n byte) []byte { return nlattr.Append(nil, attrTupleZone, []byte{0, n}) }
	for name, tt := range map[string]struct {
		message []byte
		ok      bool
		byIPVS  bool
	}{
		"translated by nat":     {entry(protocolUDP, nil, id, status(0x1ae)), true, false},
		"translated by IPVS":    {entry(protocolUDP, nil, id, status(0x18e)), true, true},
		"UDP":                   {entry(protocolUDP, nil, id), true, false},
		"the default zone":      {entry(protocolUDP, tupleZone(0), id, zone(0)), true, false},
		"another zone":          {entry(protocolUDP, nil, id, zone(7)), false, false},
		"of one direction only": {entry(protocolUDP, tupleZone(7), id), false, false},
		"no TCP state":          {entry(protocolTCP, nil, id, status(0)), false, false},
		"SCTP":                  {entry(132, nil, id), false, false},
		"UDP-Lite":              {entry(136, nil, id), false, false},
		"no ID":                 {entry(protocolUDP, nil), false, false},
		"an ID cut off":         {entry(protocolUDP, nil, nlattr.Append(nil, attrID, []byte{7})), false, false},
		"an empty attribute":    {entry(protocolUDP, nil, id, []byte{0, 0, 0, 0}), false, false},
		"nothing":               {nil, false, false},
		"TCP without an answer": {entry(protocolTCP, nil, id, status(statusDestinationNAT), tcp(stateSYNSent)), true, false},
		"answered TCP":          {entry(protocolTCP, nil, id, status(seenReply), tcp(stateSYNSent)), false, false},
		"established TCP":       {entry(protocolTCP, nil, id, status(0), tcp(3)), false, false},
	} {
		f, ok := parseFlow(tt.message)
		want := want
		want.OutsideNAT = tt.byIPVS
		if strings.HasPrefix(name, "TCP") {
			want.Protocol = v1alpha1.ProtocolTCP
		}
		if ok != tt.ok || ok && f != want {
			t.Errorf("%s: got %v, %v", name, f, ok)
		}
	}
	whole := entry(protocolUDP, nil, id)
	for i := range whole {
		if f, ok := parseFlow(whole[:i]); ok {
			t.Errorf("cut off after %d bytes: got %v", i, f)
		}
	}
}

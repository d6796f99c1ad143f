package conntrack

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func tupleOfText(protocol byte, source, destination string) []byte {
	return tupleOf(protocol, netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination))
}

// entry is what the kernel sends of a flow of 10.244.7.7, with more attributes.
func entry(protocol byte, inTuple []byte, more ...[]byte) []byte {
	b := headerOf(dataplane.IPv4)
	b = nlattr.Append(b, nl.CTA_TUPLE_ORIG|nlattr.Nested, slices.Concat(tupleOfText(protocol, "10.244.7.7:40000", "10.96.0.10:53"), inTuple))
	b = nlattr.Append(b, nl.CTA_TUPLE_REPLY|nlattr.Nested, tupleOfText(protocol, "10.244.0.3:5353", "10.244.7.7:40000"))
	return slices.Concat(append([][]byte{b}, more...)...)
}

func TestParseFlow(t *testing.T) {
	want := Flow{Protocol: v1alpha1.ProtocolUDP,
		Source: netip.MustParseAddrPort("10.244.7.7:40000"), Destination: netip.MustParseAddrPort("10.96.0.10:53"),
		ReplySource: netip.MustParseAddrPort("10.244.0.3:5353"), ReplyDestination: netip.MustParseAddrPort("10.244.7.7:40000"), ID: 7,
	}
	id := nlattr.Append(nil, nl.CTA_ID, []byte{0, 0, 0, 7})
	status := func(n uint16) []byte {
		return nlattr.Append(nil, nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, uint32(n)))
	}
	tcp := func(state byte) []byte {
		return nlattr.Append(nil, nl.CTA_PROTOINFO|nlattr.Nested, nlattr.Append(nil, nl.CTA_PROTOINFO_TCP|nlattr.Nested, nlattr.Append(nil, nl.CTA_PROTOINFO_TCP_STATE, []byte{state})))
	}
	zone := func(n byte) []byte { return nlattr.Append(nil, nl.CTA_ZONE, []byte{0, n}) }
	tupleZone := func(n byte) []byte { return nlattr.Append(nil, attrTupleZone, []byte{0, n}) }
	for name, tt := range map[string]struct {
		message []byte
		ok      bool
		byIPVS  bool
	}{
		"translated by nat":     {entry(unix.IPPROTO_UDP, nil, id, status(0x1ae)), true, false},
		"translated by IPVS":    {entry(unix.IPPROTO_UDP, nil, id, status(0x18e)), true, true},
		"UDP":                   {entry(unix.IPPROTO_UDP, nil, id), true, false},
		"the default zone":      {entry(unix.IPPROTO_UDP, tupleZone(0), id, zone(0)), true, false},
		"another zone":          {entry(unix.IPPROTO_UDP, nil, id, zone(7)), false, false},
		"of one direction only": {entry(unix.IPPROTO_UDP, tupleZone(7), id), false, false},
		"no TCP state":          {entry(unix.IPPROTO_TCP, nil, id, status(0)), false, false},
		"SCTP":                  {entry(132, nil, id), false, false},
		"UDP-Lite":              {entry(136, nil, id), false, false},
		"no ID":                 {entry(unix.IPPROTO_UDP, nil), false, false},
		"an ID cut off":         {entry(unix.IPPROTO_UDP, nil, nlattr.Append(nil, nl.CTA_ID, []byte{7})), false, false},
		"an empty attribute":    {entry(unix.IPPROTO_UDP, nil, id, []byte{0, 0, 0, 0}), false, false},
		"nothing":               {nil, false, false},
		"TCP without an answer": {entry(unix.IPPROTO_TCP, nil, id, status(statusDestinationNAT), tcp(nl.TCP_CONNTRACK_SYN_SENT)), true, false},
		"answered TCP":          {entry(unix.IPPROTO_TCP, nil, id, status(seenReply), tcp(nl.TCP_CONNTRACK_SYN_SENT)), false, false},
		"established TCP":       {entry(unix.IPPROTO_TCP, nil, id, status(0), tcp(3)), false, false},
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
	whole := entry(unix.IPPROTO_UDP, nil, id)
	for i := range whole {
		if f, ok := parseFlow(whole[:i]); ok {
			t.Errorf("cut off after %d bytes: got %v", i, f)
		}
	}
}

package conntrack

import (
	"encoding/binary"
	"net/netip"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Numbers of the kernel's include/uapi/linux/netfilter/nfnetlink_conntrack.h
// and of what it takes in CTA_FILTER, since Linux 5.8.
const (
	messageTypeGet    = 1<<8 | 1
	messageTypeDelete = 1<<8 | 2

	messageTypeGetCPUStats = 1<<8 | 4

	attrTupleOrig  = 1
	attrTupleReply = 2
	attrStatus     = 3
	attrProtoInfo  = 4
	attrID         = 12
	attrZone       = 18
	attrFilter     = 25
	attrStatusMask = 26

	attrProtoInfoTCP = 1
	attrTCPState     = 1

	attrTupleIP    = 1
	attrTupleProto = 2
	attrTupleZone  = 3

	attrIPv4Src = 1
	attrIPv4Dst = 2
	attrIPv6Src = 3
	attrIPv6Dst = 4

	attrProtoNumber  = 1
	attrProtoSrcPort = 2
	attrProtoDstPort = 3

	attrFilterOrigFlags = 1

	attrStatsInsertFailed = 9
	attrStatsDrop         = 10
	attrStatsEarlyDrop    = 11

	filterIPDst       = 1 << 1
	filterProtoNumber = 1 << 3
	filterProtoDst    = 1 << 5

	headerLength = 4 // of a message

	// seenReply is the bit of a status that says that an answer has come.
	seenReply = 1 << 1
	// statusDestinationNAT: the rules of nat have translated the destination.
	statusDestinationNAT = 1 << 5
	// stateSYNSent is that of a TCP connection of which only the client has sent.
	stateSYNSent = 1

	protocolTCP = 6
	protocolUDP = 17
	afINET      = 2
	afINET6     = 10
)

func header(family dataplane.Family) []byte {
	if family == dataplane.IPv4 {
		return []byte{afINET, 0, 0, 0}
	}
	return []byte{afINET6, 0, 0, 0}
}

// kernelFilter is what of a filter the kernel can be left. Not addresses of
// IPv6: of those it delivers all flows but the ones that match (Linux 6.18).
func kernelFilter(f Filter) Filter {
	if f.Address.Is6() {
		f.Address = netip.Addr{}
	}
	return f
}

// numberOf is a protocol's number in packets.
func numberOf(protocol v1alpha1.Protocol) byte {
	if protocol == v1alpha1.ProtocolTCP {
		return protocolTCP
	}
	return protocolUDP
}

// dumpMessage asks for all flows of a family; with a filter, for those that it
// matches and that are of the protocol. Of TCP it asks for those without an answer,
// which kernels that do not know attrStatusMask do not mind.
func dumpMessage(family dataplane.Family, protocol v1alpha1.Protocol, filter *Filter) []byte {
	b := header(family)
	if filter == nil {
		return b
	}
	flags := uint32(filterProtoNumber)
	var tuple []byte
	if filter.Address.IsValid() {
		flags |= filterIPDst
		tuple = nlattr.Append(tuple, attrTupleIP|nlattr.Nested, appendAddress(nil, false, filter.Address))
	}
	proto := nlattr.Append(nil, attrProtoNumber, []byte{numberOf(protocol)})
	if filter.Port != 0 {
		flags |= filterProtoDst
		proto = nlattr.AppendUint16(proto, attrProtoDstPort, filter.Port)
	}
	tuple = nlattr.Append(tuple, attrTupleProto|nlattr.Nested, proto)
	b = nlattr.Append(b, attrTupleOrig|nlattr.Nested, tuple)
	if protocol == v1alpha1.ProtocolTCP {
		b = nlattr.AppendUint32(b, attrStatus, 0)
		b = nlattr.AppendUint32(b, attrStatusMask, seenReply)
	}
	return nlattr.Append(b, attrFilter|nlattr.Nested, nlattr.Append(nil, attrFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, flags)))
}

// deleteMessage asks to delete exactly one flow. Without its tuple the kernel
// would empty the table.
func deleteMessage(f Flow) []byte {
	family := dataplane.IPv4
	if f.Source.Addr().Is6() {
		family = dataplane.IPv6
	}
	ip := appendAddress(appendAddress(nil, true, f.Source.Addr()), false, f.Destination.Addr())
	proto := nlattr.Append(nil, attrProtoNumber, []byte{numberOf(f.Protocol)})
	proto = nlattr.Append(proto, attrProtoSrcPort, binary.BigEndian.AppendUint16(nil, f.Source.Port()))
	proto = nlattr.Append(proto, attrProtoDstPort, binary.BigEndian.AppendUint16(nil, f.Destination.Port()))
	tuple := nlattr.Append(nil, attrTupleIP|nlattr.Nested, ip)
	tuple = nlattr.Append(tuple, attrTupleProto|nlattr.Nested, proto)
	b := nlattr.Append(header(family), attrTupleOrig|nlattr.Nested, tuple)
	return nlattr.AppendUint32(b, attrID, f.ID)
}

func appendAddress(b []byte, source bool, a netip.Addr) []byte {
	kind := uint16(attrIPv6Dst)
	switch {
	case a.Is4() && source:
		kind = attrIPv4Src
	case a.Is4():
		kind = attrIPv4Dst
	case source:
		kind = attrIPv6Src
	}
	return nlattr.Append(b, kind, a.AsSlice())
}

// parseFlow reads a flow from a message. It returns false for what is neither a UDP
// flow nor a TCP connection without an answer, or not in the default zone, or cannot
// be read.
func parseFlow(message []byte) (Flow, bool) {
	if len(message) < headerLength {
		return Flow{}, false
	}
	var f Flow
	var orig, reply, id bool
	status := uint32(statusDestinationNAT) // where that is not told
	state := byte(0)
	ok := nlattr.Each(message[headerLength:], func(kind uint16, payload []byte) bool {
		switch kind {
		case attrTupleOrig:
			f.Source, f.Destination, f.Protocol, orig = parseTuple(payload)
			return orig
		case attrTupleReply:
			f.ReplySource, f.ReplyDestination, _, reply = parseTuple(payload)
			return reply
		case attrProtoInfo:
			state = tcpState(payload)
		case attrID:
			if id = len(payload) == 4; id {
				f.ID = binary.BigEndian.Uint32(payload)
			}
		case attrStatus:
			if len(payload) == 4 {
				status = binary.BigEndian.Uint32(payload)
			}
		case attrZone:
			return len(payload) == 2 && binary.BigEndian.Uint16(payload) == 0
		}
		return true
	})
	f.OutsideNAT = f.translated() && status&statusDestinationNAT == 0
	waits := f.Protocol == v1alpha1.ProtocolUDP || status&seenReply == 0 && state == stateSYNSent
	return f, ok && orig && reply && id && waits
}

// tcpState returns the state of a TCP connection; 0 for what is none.
func tcpState(b []byte) (state byte) {
	nlattr.Each(b, func(kind uint16, payload []byte) bool {
		if kind != attrProtoInfoTCP {
			return true
		}
		return nlattr.Each(payload, func(kind uint16, payload []byte) bool {
			if kind == attrTCPState && len(payload) == 1 {
				state = payload[0]
			}
			return true
		})
	})
	return state
}

// parseTuple returns false for what is no UDP or TCP tuple of the default zone.
func parseTuple(b []byte) (source, destination netip.AddrPort, protocol v1alpha1.Protocol, ok bool) {
	var src, dst netip.Addr
	var srcPort, dstPort uint16
	var number byte
	var ports int
	ok = nlattr.Each(b, func(kind uint16, payload []byte) bool {
		switch kind {
		case attrTupleIP:
			return nlattr.Each(payload, func(kind uint16, payload []byte) bool {
				a, ok := netip.AddrFromSlice(payload)
				switch kind {
				case attrIPv4Src, attrIPv6Src:
					src = a
				case attrIPv4Dst, attrIPv6Dst:
					dst = a
				default:
					return true
				}
				return ok
			})
		case attrTupleProto:
			return nlattr.Each(payload, func(kind uint16, payload []byte) bool {
				switch {
				case kind == attrProtoNumber && len(payload) == 1:
					number = payload[0]
				case kind == attrProtoSrcPort && len(payload) == 2:
					srcPort, ports = binary.BigEndian.Uint16(payload), ports+1
				case kind == attrProtoDstPort && len(payload) == 2:
					dstPort, ports = binary.BigEndian.Uint16(payload), ports+1
				}
				return true
			})
		case attrTupleZone:
			return len(payload) == 2 && binary.BigEndian.Uint16(payload) == 0
		}
		return true
	})
	switch number {
	case protocolUDP:
		protocol = v1alpha1.ProtocolUDP
	case protocolTCP:
		protocol = v1alpha1.ProtocolTCP
	default:
		ok = false
	}
	ok = ok && ports == 2 && src.IsValid() && dst.IsValid() && src.Is4() == dst.Is4()
	return netip.AddrPortFrom(src, srcPort), netip.AddrPortFrom(dst, dstPort), protocol, ok
}

// add adds the counters of one CPU, as a message holds them. Attributes that are
// not known or cut off count nothing.
func (c *Counters) add(message []byte) {
	if len(message) < headerLength {
		return
	}
	nlattr.Each(message[headerLength:], func(kind uint16, payload []byte) bool {
		if len(payload) != 4 {
			return true
		}
		value := int64(binary.BigEndian.Uint32(payload))
		switch kind {
		case attrStatsInsertFailed:
			c.InsertFailed += value
		case attrStatsDrop:
			c.Drop += value
		case attrStatsEarlyDrop:
			c.EarlyDrop += value
		}
		return true
	})
}

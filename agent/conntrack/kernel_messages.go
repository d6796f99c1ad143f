package conntrack

import (
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Numbers of the kernel's include/uapi/linux/netfilter/nfnetlink_conntrack.h and nfnetlink.h, and
// of what CTA_FILTER may contain since Linux 5.8, as far as package nl lacks them.
const (
	requestGet      = unix.NFNL_SUBSYS_CTNETLINK<<8 | nl.IPCTNL_MSG_CT_GET
	requestDelete   = unix.NFNL_SUBSYS_CTNETLINK<<8 | nl.IPCTNL_MSG_CT_DELETE
	requestCPUStats = unix.NFNL_SUBSYS_CTNETLINK<<8 | 4

	attrFilter     = 25
	attrStatusMask = 26
	attrTupleZone  = 3

	attrFilterOrigFlags = 1
	filterIPDst         = 1 << 1
	filterProtoNumber   = 1 << 3
	filterProtoDst      = 1 << 5

	attrStatsInsertFailed = 9
	attrStatsDrop         = 10
	attrStatsEarlyDrop    = 11

	// seenReply is the bit of a status for a flow with an answer.
	seenReply = 1 << 1
	// statusDestinationNAT: rules of nat have translated the destination.
	statusDestinationNAT = 1 << 5
)

// header begins a message.
func header(family uint8) []byte { return []byte{family, nl.NFNETLINK_V0, 0, 0} }

func headerOf(family dataplane.Family) []byte { return header(family.Number()) }

// dumpMessage requests all flows of a family; with a filter, those of the protocol that match it.
// Of TCP it requests those without an answer; kernels that do not know attrStatusMask ignore
// that.
func dumpMessage(family dataplane.Family, protocol v1alpha1.Protocol, filter *Filter) []byte {
	b := headerOf(family)
	if filter == nil {
		return b
	}
	flags := uint32(filterProtoNumber)
	var tuple []byte
	if filter.Address.IsValid() {
		flags |= filterIPDst
		tuple = nlattr.Append(tuple, nl.CTA_TUPLE_IP|nlattr.Nested, appendAddress(nil, false, filter.Address))
	}
	proto := nlattr.Append(nil, nl.CTA_PROTO_NUM, []byte{dataplane.ProtocolNumber(protocol)})
	if filter.Port != 0 {
		flags |= filterProtoDst
		proto = nlattr.AppendUint16(proto, nl.CTA_PROTO_DST_PORT, filter.Port)
	}
	tuple = nlattr.Append(tuple, nl.CTA_TUPLE_PROTO|nlattr.Nested, proto)
	b = nlattr.Append(b, nl.CTA_TUPLE_ORIG|nlattr.Nested, tuple)
	if protocol == v1alpha1.ProtocolTCP {
		b = nlattr.AppendUint32(b, nl.CTA_STATUS, 0)
		b = nlattr.AppendUint32(b, attrStatusMask, seenReply)
	}
	return nlattr.Append(b, attrFilter|nlattr.Nested, nlattr.Append(nil, attrFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, flags)))
}

// getMessage requests the flow whose answers go from where it arrives to its sender.
func getMessage(protocol v1alpha1.Protocol, sender, arrives netip.AddrPort) []byte {
	tuple := tupleOf(dataplane.ProtocolNumber(protocol), arrives, sender)
	return nlattr.Append(headerOf(dataplane.FamilyOf(sender.Addr())), nl.CTA_TUPLE_REPLY|nlattr.Nested, tuple)
}

// deleteMessage requests to delete exactly one flow. Without its tuple the kernel would empty
// the table.
func deleteMessage(f Flow) []byte {
	b := nlattr.Append(headerOf(dataplane.FamilyOf(f.Source.Addr())), nl.CTA_TUPLE_ORIG|nlattr.Nested, tupleOf(dataplane.ProtocolNumber(f.Protocol), f.Source, f.Destination))
	return nlattr.AppendUint32(b, nl.CTA_ID, f.ID)
}

// tupleOf is the content of a tuple.
func tupleOf(protocol byte, source, destination netip.AddrPort) []byte {
	proto := nlattr.Append(nil, nl.CTA_PROTO_NUM, []byte{protocol})
	proto = nlattr.AppendUint16(proto, nl.CTA_PROTO_SRC_PORT, source.Port())
	proto = nlattr.AppendUint16(proto, nl.CTA_PROTO_DST_PORT, destination.Port())
	ip := appendAddress(appendAddress(nil, true, source.Addr()), false, destination.Addr())
	return nlattr.Append(nlattr.Append(nil, nl.CTA_TUPLE_IP|nlattr.Nested, ip), nl.CTA_TUPLE_PROTO|nlattr.Nested, proto)
}

func appendAddress(b []byte, source bool, a netip.Addr) []byte {
	kind := uint16(nl.CTA_IP_V6_DST)
	switch {
	case a.Is4() && source:
		kind = nl.CTA_IP_V4_SRC
	case a.Is4():
		kind = nl.CTA_IP_V4_DST
	case source:
		kind = nl.CTA_IP_V6_SRC
	}
	return nlattr.Append(b, kind, a.AsSlice())
}

// parseFlow reads a flow from a message. It returns false for anything but a UDP flow or a TCP
// connection without an answer, of the default zone, and for what it cannot parse.
func parseFlow(message []byte) (Flow, bool) {
	if len(message) < nl.SizeofNfgenmsg {
		return Flow{}, false
	}
	var f Flow
	var orig, reply, id bool
	status := uint32(statusDestinationNAT) // if the kernel does not report it
	state := byte(0)
	ok := nlattr.Each(message[nl.SizeofNfgenmsg:], func(kind uint16, payload []byte) bool {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			f.Source, f.Destination, f.Protocol, orig = parseTuple(payload)
			return orig
		case nl.CTA_TUPLE_REPLY:
			f.ReplySource, f.ReplyDestination, _, reply = parseTuple(payload)
			return reply
		case nl.CTA_PROTOINFO:
			state = tcpState(payload)
		case nl.CTA_ID:
			if id = len(payload) == 4; id {
				f.ID = binary.BigEndian.Uint32(payload)
			}
		case nl.CTA_STATUS:
			if len(payload) == 4 {
				status = binary.BigEndian.Uint32(payload)
			}
		case nl.CTA_ZONE:
			return isDefaultZone(payload)
		}
		return true
	})
	f.OutsideNAT = f.translated() && status&statusDestinationNAT == 0
	// An untranslated one that a reset has closed would have the next one from its port reset.
	waits := f.Protocol == v1alpha1.ProtocolUDP || status&seenReply == 0 &&
		(state == nl.TCP_CONNTRACK_SYN_SENT || state == nl.TCP_CONNTRACK_CLOSE && !f.translated())
	return f, ok && orig && reply && id && waits
}

func isDefaultZone(b []byte) bool { return len(b) == 2 && binary.BigEndian.Uint16(b) == 0 }

// tcpState returns the state of a TCP connection; 0 for other protocols.
func tcpState(b []byte) (state byte) {
	for kind, info := range nlattr.All(b) {
		if kind != nl.CTA_PROTOINFO_TCP {
			continue
		}
		for kind, value := range nlattr.All(info) {
			if kind == nl.CTA_PROTOINFO_TCP_STATE && len(value) == 1 {
				state = value[0]
			}
		}
	}
	return state
}

// parseTuple returns false for anything but a UDP or TCP tuple of the default zone.
func parseTuple(b []byte) (source, destination netip.AddrPort, protocol v1alpha1.Protocol, ok bool) {
	var src, dst netip.Addr
	var srcPort, dstPort uint16
	var number byte
	var ports int
	ok = nlattr.Each(b, func(kind uint16, payload []byte) bool {
		switch kind {
		case nl.CTA_TUPLE_IP:
			return nlattr.Each(payload, func(kind uint16, payload []byte) bool {
				a, ok := netip.AddrFromSlice(payload)
				switch kind {
				case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
					src = a
				case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
					dst = a
				default:
					return true
				}
				return ok
			})
		case nl.CTA_TUPLE_PROTO:
			return nlattr.Each(payload, func(kind uint16, payload []byte) bool {
				switch {
				case kind == nl.CTA_PROTO_NUM && len(payload) == 1:
					number = payload[0]
				case kind == nl.CTA_PROTO_SRC_PORT && len(payload) == 2:
					srcPort, ports = binary.BigEndian.Uint16(payload), ports+1
				case kind == nl.CTA_PROTO_DST_PORT && len(payload) == 2:
					dstPort, ports = binary.BigEndian.Uint16(payload), ports+1
				}
				return true
			})
		case attrTupleZone:
			return isDefaultZone(payload)
		}
		return true
	})
	protocol = dataplane.ProtocolOf(number)
	ok = ok && (protocol == v1alpha1.ProtocolUDP || protocol == v1alpha1.ProtocolTCP) && ports == 2 && src.IsValid() && dst.IsValid() && src.Is4() == dst.Is4()
	return netip.AddrPortFrom(src, srcPort), netip.AddrPortFrom(dst, dstPort), protocol, ok
}

// add adds the counters of one CPU's message. Unknown and incomplete attributes do not count.
func (c *Counters) add(message []byte) {
	if len(message) < nl.SizeofNfgenmsg {
		return
	}
	for kind, payload := range nlattr.All(message[nl.SizeofNfgenmsg:]) {
		if len(payload) != 4 {
			continue
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
	}
}

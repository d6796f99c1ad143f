package modeltest

import (
	"encoding/binary"
	"hash/crc32"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
)

const (
	flagFIN = 1
	flagSYN = 2
)

// protocols are the numbers of the protocols that a packet may have.
var protocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}

// marshal writes an IP packet: the first one of a connection, or, if its state is
// INVALID, one with flags that no TCP packet has.
func marshal(p kernelmodel.Packet, port uint16) []byte {
	body := binary.BigEndian.AppendUint16(nil, port)
	body = binary.BigEndian.AppendUint16(body, p.Destination.Port())
	checksumAt := 0
	switch p.Protocol {
	case "tcp":
		flags := byte(flagSYN)
		if p.State == invalid {
			flags |= flagFIN
		}
		body = append(body, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
		checksumAt = 16
	case "udp":
		body = append(body, 0, 8, 0, 0)
		checksumAt = 6
	case "sctp": // INIT
		body = append(body, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0xff, 0xff, 0, 1, 0, 1, 0, 0, 0, 1)
		binary.LittleEndian.PutUint32(body[8:], crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
	}
	from, to := p.Source.AsSlice(), p.Destination.Addr().AsSlice()
	number := protocols[p.Protocol]
	if checksumAt > 0 {
		pseudo := append(append(append([]byte{}, from...), to...), 0, number, 0, byte(len(body)))
		binary.BigEndian.PutUint16(body[checksumAt:], checksum(append(pseudo, body...)))
	}
	const hops = 64
	if p.Source.Is6() {
		head := append([]byte{6 << 4, 0, 0, 0, 0, byte(len(body)), number, hops}, append(from, to...)...)
		return append(head, body...)
	}
	head := append([]byte{4<<4 | 5, 0, 0, byte(20 + len(body)), 0, 0, 0x40, 0, hops, number, 0, 0}, append(from, to...)...)
	binary.BigEndian.PutUint16(head[10:], checksum(head))
	return append(head, body...)
}

// checksum is that of the Internet protocols.
func checksum(data []byte) uint16 {
	if len(data)%2 == 1 {
		data = append(data, 0)
	}
	var sum uint32
	for ; len(data) > 0; data = data[2:] {
		sum += uint32(binary.BigEndian.Uint16(data))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum) //nolint:gosec // folded to 16 bits
}

// frame puts a packet into an Ethernet frame.
func frame(to, from net.HardwareAddr, kind uint16, packet []byte) []byte {
	out := append(append([]byte{}, to...), from...)
	return append(binary.BigEndian.AppendUint16(out, kind), packet...)
}

// sockaddr is an address without a port for a raw socket.
func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is6() {
		return &unix.SockaddrInet6{Addr: a.As16()}
	}
	return &unix.SockaddrInet4{Addr: a.As4()}
}

// bigEndian is a number in network byte order, as sockets of packets expect it.
func bigEndian(n uint16) uint16 { return n<<8 | n>>8 }

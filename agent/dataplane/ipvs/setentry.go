package ipvs

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// Attributes of an entry of an ipset, as in the kernel's ip_set.h.
const (
	attrIP    = 1
	attrPort  = 4
	attrProto = 7
	attrFlags = 8
	attrIP2   = 20
	attrCIDR2 = 21

	attrIPv4 = 1 // in the attribute of an address
	attrIPv6 = 2

	entryNoMatch = 4 // a flag: what matches is not in the set
)

const noMatchSuffix = " nomatch"

// element is an entry of an ipset as the kernel has it. Which fields there are
// is a matter of the set's type.
type element struct {
	addr  netip.Addr
	proto uint8
	port  uint16
	// second is the second address, or network.
	second  netip.Prefix
	noMatch bool
}

// protocolNames are those that entries have names for.
func protocolNames() map[uint8]string {
	return map[uint8]string{6: "tcp", 17: "udp", 132: "sctp", 136: "udplite"}
}

// entry writes the element as the ipset program prints it.
func (x element) entry(t SetType) Entry {
	proto, ok := protocolNames()[x.proto]
	if !ok {
		proto = strconv.Itoa(int(x.proto))
	}
	var text string
	switch t {
	case BitmapPort:
		text = strconv.Itoa(int(x.port))
	case HashIP:
		text = x.addr.String()
	default:
		text = x.addr.String() + "," + proto + ":" + strconv.Itoa(int(x.port))
	}
	switch {
	case t == HashIPPortNet && x.second.Bits() < x.second.Addr().BitLen():
		text += "," + x.second.String()
	case t == HashIPPortNet, t == HashIPPortIP:
		text += "," + x.second.Addr().String()
	}
	if x.noMatch {
		text += noMatchSuffix
	}
	return Entry(text)
}

// parseElement reads an entry of a set of the type.
func parseElement(t SetType, e Entry) (element, error) {
	text, noMatch := strings.CutSuffix(string(e), noMatchSuffix)
	x := element{noMatch: noMatch}
	fail := func(err error) (element, error) {
		return element{}, fmt.Errorf("the entry %q is none of an ipset of type %s: %w", e, t, err)
	}
	var err error
	if t == BitmapPort {
		x.port, err = parsePort(text)
		if err != nil {
			return fail(err)
		}
		return x, nil
	}
	fields := strings.Split(text, ",")
	if len(fields) != 1+strings.Count(string(t), ",") {
		return fail(fmt.Errorf("it has %d parts", len(fields)))
	}
	if x.addr, err = parseText(fields[0]); err != nil {
		return fail(err)
	}
	if len(fields) > 1 {
		if err := x.parsePort(fields[1]); err != nil {
			return fail(err)
		}
	}
	if len(fields) > 2 {
		if err := x.parseSecond(fields[2]); err != nil {
			return fail(err)
		}
		if t == HashIPPortIP && !x.second.IsSingleIP() {
			return fail(fmt.Errorf("%q is a network, not an address", fields[2]))
		}
	}
	return x, nil
}

// parsePort reads a port with its protocol, as in tcp:80.
func (x *element) parsePort(text string) error {
	name, port, ok := strings.Cut(text, ":")
	if !ok {
		return fmt.Errorf("%q is not a protocol and a port", text)
	}
	for number, known := range protocolNames() {
		if name == known {
			x.proto = number
		}
	}
	if x.proto == 0 {
		number, err := strconv.ParseUint(name, 10, 8)
		if err != nil {
			return fmt.Errorf("%q is not a protocol", name)
		}
		x.proto = uint8(number)
	}
	var err error
	x.port, err = parsePort(port)
	return err
}

func (x *element) parseSecond(text string) (err error) {
	if strings.Contains(text, "/") {
		x.second, err = netip.ParsePrefix(text)
		return err
	}
	addr, err := parseText(text)
	if err != nil {
		return err
	}
	x.second = netip.PrefixFrom(addr, addr.BitLen())
	return nil
}

// parseText reads an address. The kernel's entries have no zones.
func parseText(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err == nil && addr.Zone() != "" {
		err = fmt.Errorf("the address %q has a zone", text)
	}
	return addr, err
}

func parsePort(text string) (uint16, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is not a port", text)
	}
	return uint16(port), nil
}

// encode returns the element's attributes.
func (x element) encode(t SetType) []byte {
	var b []byte
	if t != BitmapPort {
		b = appendAddress(b, attrIP, x.addr)
	}
	if t != BitmapPort && t != HashIP {
		b = nlattr.Append(b, attrProto, []byte{x.proto})
	}
	if t != HashIP {
		b = nlattr.AppendUint16(b, attrPort|nlattr.NetByteOrder, x.port)
	}
	switch t {
	case HashIPPortIP:
		b = appendAddress(b, attrIP2, x.second.Addr())
	case HashIPPortNet:
		b = appendAddress(b, attrIP2, x.second.Addr())
		b = nlattr.Append(b, attrCIDR2, []byte{uint8(x.second.Bits())})
	}
	return b
}

// parseAttributes reads an element that the kernel has written.
func parseAttributes(t SetType, b []byte) (element, error) {
	var x element
	var second netip.Addr
	bits := -1
	for kind, value := range nlattr.All(b) {
		if n := fixedLength(kind); n > 0 && len(value) != n {
			return element{}, fmt.Errorf("the kernel returned an entry of an ipset of type %s with %d bytes in attribute %d instead of %d", t, len(value), kind, n)
		}
		switch kind {
		case attrIP:
			x.addr = parseAddress(value)
		case attrIP2:
			second = parseAddress(value)
		case attrProto:
			x.proto = value[0]
		case attrPort:
			x.port = binary.BigEndian.Uint16(value)
		case attrCIDR2:
			bits = int(value[0])
		case attrFlags:
			x.noMatch = binary.BigEndian.Uint32(value)&entryNoMatch != 0
		}
	}
	if second.IsValid() {
		if bits < 0 {
			bits = second.BitLen()
		}
		x.second = netip.PrefixFrom(second, bits)
	}
	if t != BitmapPort && !x.addr.IsValid() || strings.Count(string(t), ",") == 2 && !x.second.IsValid() {
		return element{}, fmt.Errorf("the kernel has written an entry of an ipset of type %s without an address", t)
	}
	return x, nil
}

// fixedLength is the length of an attribute of an entry, in bytes; 0: it varies.
func fixedLength(kind uint16) int {
	switch kind {
	case attrProto, attrCIDR2:
		return 1
	case attrPort:
		return 2
	case attrFlags:
		return 4
	default:
		return 0
	}
}

func appendAddress(b []byte, kind uint16, a netip.Addr) []byte {
	family := uint16(attrIPv6)
	if a.Is4() {
		family = attrIPv4
	}
	return nlattr.Append(b, kind|nlattr.Nested, nlattr.Append(nil, family|nlattr.NetByteOrder, a.AsSlice()))
}

func parseAddress(b []byte) netip.Addr {
	for _, value := range nlattr.All(b) {
		addr, _ := netip.AddrFromSlice(value) // not valid if it is none
		return addr
	}
	return netip.Addr{}
}

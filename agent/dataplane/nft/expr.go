package nft

import (
	"encoding/binary"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// Expr is an expression: a step of a rule. It reads and writes registers.
type Expr []byte

// Register is a register of 32 bits, from 0 to 15. Longer values take those that follow.
type Register uint32

// number is the register as the kernel lists it: each fourth one by its older number.
func (r Register) number() uint32 {
	if r%4 == 0 {
		return unix.NFT_REG_1 + uint32(r)/4
	}
	return unix.NFT_REG32_00 + uint32(r)
}

// attributes are the attributes of an expression while they are put together.
type attributes []byte

func (a attributes) number(kind uint16, n uint32) attributes { return nlattr.AppendUint32(a, kind, n) }

func (a attributes) text(kind uint16, text string) attributes {
	return nlattr.AppendText(a, kind, text)
}

func (a attributes) value(kind uint16, value []byte) attributes { return appendValue(a, kind, value) }

// expr puts an expression together.
func expr(name string, a attributes) Expr {
	b := nlattr.AppendText(nil, unix.NFTA_EXPR_NAME, name)
	return nlattr.Append(b, unix.NFTA_EXPR_DATA|nlattr.Nested, a)
}

// Meta loads one of unix.NFT_META_*, such as the mark of the packet.
func Meta(key uint32, to Register) Expr {
	return expr("meta", attributes(nil).number(unix.NFTA_META_KEY, key).number(unix.NFTA_META_DREG, to.number()))
}

// SetMeta sets one of unix.NFT_META_*.
func SetMeta(key uint32, from Register) Expr {
	return expr("meta", attributes(nil).number(unix.NFTA_META_KEY, key).number(unix.NFTA_META_SREG, from.number()))
}

// Network loads bytes of the network header.
func Network(offset, length uint32, to Register) Expr {
	return payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, length, to)
}

// Transport loads bytes of the transport header.
func Transport(offset, length uint32, to Register) Expr {
	return payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset, length, to)
}

func payload(base, offset, length uint32, to Register) Expr {
	return expr("payload", attributes(nil).number(unix.NFTA_PAYLOAD_DREG, to.number()).
		number(unix.NFTA_PAYLOAD_BASE, base).number(unix.NFTA_PAYLOAD_OFFSET, offset).number(unix.NFTA_PAYLOAD_LEN, length))
}

// Conntrack loads one of unix.NFT_CT_* of the packet's connection.
func Conntrack(key uint32, to Register) Expr {
	return expr("ct", attributes(nil).number(unix.NFTA_CT_KEY, key).number(unix.NFTA_CT_DREG, to.number()))
}

// Original loads one of unix.NFT_CT_* of the original direction of the packet's connection.
func Original(key uint32, to Register) Expr {
	a := attributes(nil).number(unix.NFTA_CT_KEY, key).number(unix.NFTA_CT_DREG, to.number())
	return expr("ct", nlattr.Append(a, unix.NFTA_CT_DIRECTION, []byte{0}))
}

// AddressType loads the type of the source address, such as unix.RTN_LOCAL.
func AddressType(flags uint32, to Register) Expr {
	return expr("fib", attributes(nil).number(unix.NFTA_FIB_DREG, to.number()).
		number(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE).number(unix.NFTA_FIB_FLAGS, flags))
}

// Equal ends the rule unless a register equals a value.
func Equal(from Register, value []byte) Expr { return compare(unix.NFT_CMP_EQ, from, value) }

// NotEqual ends the rule if a register equals a value.
func NotEqual(from Register, value []byte) Expr { return compare(unix.NFT_CMP_NEQ, from, value) }

func compare(op uint32, from Register, value []byte) Expr {
	return expr("cmp", attributes(nil).number(unix.NFTA_CMP_SREG, from.number()).number(unix.NFTA_CMP_OP, op).
		value(unix.NFTA_CMP_DATA, value))
}

// Bits sets a register to itself and mask, exclusive or other. Both are as long.
func Bits(register Register, mask, other []byte) Expr {
	return expr("bitwise", attributes(nil).number(unix.NFTA_BITWISE_SREG, register.number()).
		number(unix.NFTA_BITWISE_DREG, register.number()).number(unix.NFTA_BITWISE_LEN, uint32(len(mask))). //nolint:gosec // small
		value(unix.NFTA_BITWISE_MASK, mask).value(unix.NFTA_BITWISE_XOR, other))
}

// Random loads a random number below a limit.
func Random(limit uint32, to Register) Expr {
	return expr("numgen", attributes(nil).number(unix.NFTA_NG_DREG, to.number()).
		number(unix.NFTA_NG_MODULUS, limit).number(unix.NFTA_NG_TYPE, unix.NFT_NG_RANDOM))
}

// In ends the rule unless a set has the key in a register.
func In(set string, key Register) Expr { return expr("lookup", lookup(set, key)) }

// NotIn ends the rule if a set has the key in a register.
func NotIn(set string, key Register) Expr {
	return expr("lookup", lookup(set, key).number(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV))
}

// Get loads what a map has for the key in a register, or ends the rule.
func Get(set string, key, to Register) Expr {
	return expr("lookup", lookup(set, key).number(unix.NFTA_LOOKUP_DREG, to.number()))
}

// Follow gives the verdict that a map has for the key in a register, or ends the rule.
func Follow(set string, key Register) Expr {
	return expr("lookup", lookup(set, key).number(unix.NFTA_LOOKUP_DREG, unix.NFT_REG_VERDICT))
}

func lookup(set string, key Register) attributes {
	return attributes(nil).text(unix.NFTA_LOOKUP_SET, set).number(unix.NFTA_LOOKUP_SREG, key.number())
}

// Give gives a verdict.
func Give(v Verdict) Expr {
	a := attributes(nil).number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
	return expr("immediate", appendVerdict(a, unix.NFTA_IMMEDIATE_DATA, v))
}

// Learn adds an element to a dynamic map, or renews it, which expires after so long.
func Learn(set string, key, data Register, expires time.Duration) Expr {
	a := attributes(nil).text(unix.NFTA_DYNSET_SET_NAME, set).number(unix.NFTA_DYNSET_OP, unix.NFT_DYNSET_OP_UPDATE).
		number(unix.NFTA_DYNSET_SREG_KEY, key.number()).number(unix.NFTA_DYNSET_SREG_DATA, data.number())
	return expr("dynset", nlattr.Append(a, unix.NFTA_DYNSET_TIMEOUT, milliseconds(expires)))
}

// DNAT sends the connection to the address and the port in registers.
func DNAT(family byte, address, port Register) Expr {
	return expr("nat", attributes(nil).number(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT).number(unix.NFTA_NAT_FAMILY, uint32(family)).
		number(unix.NFTA_NAT_REG_ADDR_MIN, address.number()).number(unix.NFTA_NAT_REG_PROTO_MIN, port.number()).
		number(unix.NFTA_NAT_FLAGS, unix.NF_NAT_RANGE_MAP_IPS|unix.NF_NAT_RANGE_PROTO_SPECIFIED))
}

// Masquerade gives the connection an address of the node as its source. Random: with a port that
// cannot be guessed.
func Masquerade(random bool) Expr {
	var a attributes
	if random {
		a = a.number(unix.NFTA_MASQ_FLAGS, unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY)
	}
	return expr("masq", a)
}

// RejectReset answers with a reset of the TCP connection.
func RejectReset() Expr {
	return expr("reject", attributes(nil).number(unix.NFTA_REJECT_TYPE, unix.NFT_REJECT_TCP_RST))
}

// RejectUnreachable answers that the port is unreachable, to packets of a table's family.
func RejectUnreachable(family byte) Expr {
	const portOfICMP, portOfICMPv6 = 3, 4
	code := byte(portOfICMP)
	if family == unix.NFPROTO_IPV6 {
		code = portOfICMPv6
	}
	a := attributes(nil).number(unix.NFTA_REJECT_TYPE, unix.NFT_REJECT_ICMP_UNREACH)
	return expr("reject", nlattr.Append(a, unix.NFTA_REJECT_ICMP_CODE, []byte{code}))
}

// HostNumber is a number as Meta and Random load it.
func HostNumber(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

package kubeproxy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

const (
	registers      = 20 // some values extend beyond the last one
	registerLength = 4
	// States and status bits of connections.
	stateNew   = 1 << 3
	statusDNAT = 1 << 5
)

// next is where a packet goes after a rule or an expression.
type next int

const (
	onward next = iota
	endRule
	endChain // and return to the chain that jumped
	endBase  // of a base chain
)

// chain passes a chain.
func (r *run) chain(name string) (next, error) {
	rules, found := r.rules[name]
	if !found {
		return endBase, fmt.Errorf("chain %s does not exist", name)
	}
	for i := range rules {
		if r.steps++; r.steps > maxSteps {
			return endBase, fmt.Errorf("chain %s is %w: a packet passes more than %d rules, or they loop", name, ErrTooLarge, maxSteps)
		}
		if r.work++; r.work > maxWork {
			return endBase, fmt.Errorf("table %s is %w: its packets pass more than %d rules", TableName, ErrTooLarge, maxWork)
		}
		where, err := r.rule(rules[i].Exprs)
		if err != nil {
			return endBase, fmt.Errorf("rule %d of chain %s: %w", rules[i].Handle, name, err)
		}
		switch where {
		case endChain:
			return onward, nil
		case endBase:
			return endBase, nil
		}
	}
	return onward, nil
}

// rule passes the expressions of a rule.
func (r *run) rule(exprs []nft.Expr) (next, error) {
	for _, e := range exprs {
		name, data := parse(e)
		where, err := r.expr(name, data)
		if err != nil {
			return endBase, err
		}
		if where != onward {
			return where, nil
		}
	}
	return onward, nil
}

// attributes are those of an expression, by type.
type attributes map[uint16][]byte

func parse(e nft.Expr) (name string, data attributes) {
	data = attributes{}
	for kind, value := range nlattr.All(e) {
		switch kind {
		case unix.NFTA_EXPR_NAME:
			name = nlattr.Text(value)
		case unix.NFTA_EXPR_DATA:
			maps.Insert(data, nlattr.All(value))
		}
	}
	return name, data
}

func text(b []byte) string { return nlattr.Text(b) }

func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// value is what an attribute has nested.
func value(b []byte, of uint16) []byte {
	for kind, v := range nlattr.All(b) {
		if kind == of {
			return v
		}
	}
	return nil
}

// register returns the bytes from a register on. Those of 16 bytes have numbers from 1 to 4, those of
// 4 bytes from 8 on.
func (r *run) register(b []byte) ([]byte, error) {
	n := number(b)
	switch {
	case n >= 1 && n <= 4:
		n = (n - 1) * 4
	case n >= 8 && n < 24:
		n -= 8
	default:
		return nil, fmt.Errorf("register %d is unknown", n)
	}
	return r.registers[n*registerLength:], nil
}

// load writes a value to a register, and zeros up to the next one.
func (r *run) load(to, v []byte) (next, error) {
	at, err := r.register(to)
	if err != nil {
		return endBase, err
	}
	v = pad(bytes.Clone(v))
	if len(v) > len(at) {
		return endBase, fmt.Errorf("%d bytes are too long for a register", len(v))
	}
	copy(at, v)
	return onward, nil
}

// expr passes one expression.
func (r *run) expr(name string, a attributes) (next, error) {
	switch name {
	case "counter", "objref", "log":
		return onward, nil
	case "payload":
		return r.payload(a)
	case "meta":
		return r.meta(a)
	case "ct":
		return r.conntrack(a)
	case "fib":
		return r.fib(a)
	case "cmp":
		return r.compare(a)
	case "bitwise":
		return r.bits(a)
	case "lookup":
		return r.lookup(a)
	case "numgen":
		n := r.pick(max(number(a[unix.NFTA_NG_MODULUS]), 1))
		return r.load(a[unix.NFTA_NG_DREG], binary.NativeEndian.AppendUint32(nil, n+number(a[unix.NFTA_NG_OFFSET])))
	case "immediate":
		if v := value(a[unix.NFTA_IMMEDIATE_DATA], unix.NFTA_DATA_VERDICT); v != nil {
			return r.verdict(int32(number(value(v, unix.NFTA_VERDICT_CODE))), text(value(v, unix.NFTA_VERDICT_CHAIN))) //nolint:gosec // as the kernel has it
		}
		return r.load(a[unix.NFTA_IMMEDIATE_DREG], value(a[unix.NFTA_IMMEDIATE_DATA], unix.NFTA_DATA_VALUE))
	case "dynset":
		if s := r.sets[text(a[unix.NFTA_DYNSET_SET_NAME])]; s != nil {
			r.affinity = int32(s.timeout / time.Second) //nolint:gosec // seconds of a setting
		}
		return onward, nil
	case "nat":
		return r.nat(a)
	case "masq":
		r.masqueraded = true
		return endBase, nil
	case "reject":
		r.fate = Rejected
		return endBase, nil
	default:
		return endBase, fmt.Errorf("expression %q is unknown", name)
	}
}

func (r *run) verdict(code int32, chain string) (next, error) {
	switch code {
	case unix.NF_DROP:
		r.fate = Dropped
		return endBase, nil
	case unix.NF_ACCEPT:
		return endBase, nil
	case unix.NFT_RETURN:
		return endChain, nil
	case unix.NFT_JUMP:
		return r.chain(chain)
	case unix.NFT_GOTO:
		where, err := r.chain(chain)
		if where == onward {
			where = endChain
		}
		return where, err
	default:
		return endBase, fmt.Errorf("verdict %d is unknown", code)
	}
}

// payload loads a part of a header.
func (r *run) payload(a attributes) (next, error) {
	source, destination := r.packet.Source.AsSlice(), r.packet.Addr().AsSlice()
	var header []byte
	switch base := number(a[unix.NFTA_PAYLOAD_BASE]); base {
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		header = make([]byte, 12)
		if len(destination) == 16 {
			header = header[:8]
		}
		header = append(append(header, source...), destination...)
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		header = binary.BigEndian.AppendUint16([]byte{0xf0, 0}, r.packet.Port())
	default:
		return endBase, fmt.Errorf("header %d is unknown", base)
	}
	from, length := number(a[unix.NFTA_PAYLOAD_OFFSET]), number(a[unix.NFTA_PAYLOAD_LEN])
	if uint64(from)+uint64(length) > uint64(len(header)) {
		return endBase, fmt.Errorf("bytes %d to %d of a header are unknown", from, from+length)
	}
	return r.load(a[unix.NFTA_PAYLOAD_DREG], header[from:from+length])
}

// meta loads a fact of the packet, or sets its mark.
func (r *run) meta(a attributes) (next, error) {
	key := number(a[unix.NFTA_META_KEY])
	if from, sets := a[unix.NFTA_META_SREG]; sets {
		v, err := r.register(from)
		if err == nil && key == unix.NFT_META_MARK {
			r.mark = binary.NativeEndian.Uint32(v)
		}
		return onward, err
	}
	switch key {
	case unix.NFT_META_MARK:
		return r.load(a[unix.NFTA_META_DREG], binary.NativeEndian.AppendUint32(nil, r.mark))
	case unix.NFT_META_L4PROTO:
		return r.load(a[unix.NFTA_META_DREG], []byte{dataplane.ProtocolNumber(r.packet.Protocol)})
	case unix.NFT_META_IIFNAME:
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, r.packet.Interface)
		return r.load(a[unix.NFTA_META_DREG], name)
	default:
		return endBase, fmt.Errorf("meta %d is unknown", key)
	}
}

func (r *run) conntrack(a attributes) (next, error) {
	v := uint32(0)
	switch key := number(a[unix.NFTA_CT_KEY]); key {
	case unix.NFT_CT_STATE:
		v = stateNew
	case unix.NFT_CT_STATUS:
		if r.translated {
			v = statusDNAT
		}
	default:
		return endBase, fmt.Errorf("ct %d is unknown", key)
	}
	return r.load(a[unix.NFTA_CT_DREG], binary.NativeEndian.AppendUint32(nil, v))
}

// fib loads the type of an address.
func (r *run) fib(a attributes) (next, error) {
	local := r.packet.LocalDestination && !r.translated
	if number(a[unix.NFTA_FIB_FLAGS])&unix.NFTA_FIB_F_SADDR != 0 {
		local = r.packet.LocalSource
	}
	v := uint32(unix.RTN_UNICAST)
	if local {
		v = unix.RTN_LOCAL
	}
	return r.load(a[unix.NFTA_FIB_DREG], binary.NativeEndian.AppendUint32(nil, v))
}

func (r *run) compare(a attributes) (next, error) {
	v, err := r.register(a[unix.NFTA_CMP_SREG])
	want := value(a[unix.NFTA_CMP_DATA], unix.NFTA_DATA_VALUE)
	if err != nil || len(want) > len(v) {
		return endBase, fmt.Errorf("compare %d bytes: %w", len(want), err)
	}
	equal := bytes.Equal(v[:len(want)], want)
	switch op := number(a[unix.NFTA_CMP_OP]); {
	case op == unix.NFT_CMP_EQ && equal, op == unix.NFT_CMP_NEQ && !equal:
		return onward, nil
	case op == unix.NFT_CMP_EQ, op == unix.NFT_CMP_NEQ:
		return endRule, nil
	default:
		return endBase, fmt.Errorf("comparison %d is unknown", op)
	}
}

func (r *run) bits(a attributes) (next, error) {
	v, err := r.register(a[unix.NFTA_BITWISE_SREG])
	mask, other := value(a[unix.NFTA_BITWISE_MASK], unix.NFTA_DATA_VALUE), value(a[unix.NFTA_BITWISE_XOR], unix.NFTA_DATA_VALUE)
	length := int(number(a[unix.NFTA_BITWISE_LEN]))
	if err != nil || length > len(v) || len(mask) < length || len(other) < length {
		return endBase, fmt.Errorf("bits of %d bytes: %w", length, err)
	}
	out := make([]byte, length)
	for i := range out {
		out[i] = v[i]&mask[i] ^ other[i]
	}
	return r.load(a[unix.NFTA_BITWISE_DREG], out)
}

func (r *run) lookup(a attributes) (next, error) {
	name := text(a[unix.NFTA_LOOKUP_SET])
	s := r.sets[name]
	v, err := r.register(a[unix.NFTA_LOOKUP_SREG])
	if s == nil || err != nil || s.keyLength > len(v) {
		return endBase, fmt.Errorf("look up in set %s: %w", name, err)
	}
	e := s.find(v[:s.keyLength])
	if inverted := number(a[unix.NFTA_LOOKUP_FLAGS])&unix.NFT_LOOKUP_F_INV != 0; inverted != (e == nil) {
		return endRule, nil
	}
	to, isMap := a[unix.NFTA_LOOKUP_DREG]
	switch {
	case !isMap || e == nil:
		return onward, nil
	case number(to) == 0:
		return r.verdict(e.Verdict.Code, e.Verdict.Chain)
	default:
		return r.load(to, e.Data)
	}
}

// nat translates the destination.
func (r *run) nat(a attributes) (next, error) {
	address, err := r.register(a[unix.NFTA_NAT_REG_ADDR_MIN])
	if err != nil || number(a[unix.NFTA_NAT_TYPE]) != unix.NFT_NAT_DNAT {
		return endBase, fmt.Errorf("type %d of a translation: %w", number(a[unix.NFTA_NAT_TYPE]), err)
	}
	port, err := r.register(a[unix.NFTA_NAT_REG_PROTO_MIN])
	if err != nil {
		return endBase, err
	}
	to, _ := netip.AddrFromSlice(address[:r.addressLength()])
	r.packet.AddrPort, r.translated = netip.AddrPortFrom(to, binary.BigEndian.Uint16(port)), true
	return endBase, nil
}

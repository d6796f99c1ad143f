package nftablesmodel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// registers is how many bytes the registers of a packet have.
const registers = 64

// rule is a rule with its expressions parsed.
type rule struct {
	nft.Rule
	steps []step
	text  string // as the program nft prints it
}

// step is an expression.
type step struct {
	// set is what it looks up, or adds to; nil: none.
	set *set
	// verdict is what it gives; the zero value: none, or one that depends.
	verdict nft.Verdict
	// hooks are those from which packets may get here, by bits; 0: all. nat: only in chains of that
	// type.
	hooks uint32
	nat   bool
	// modulus, if not 0, is the limit of a random number, which goes to the register random, plus
	// offset.
	modulus, offset uint32
	random          int
	// run has the effect on a packet, and returns the verdict.
	run func(w *walk, f *flow) nft.Verdict
}

func (r *rule) uses(s *set) bool {
	for i := range r.steps {
		if r.steps[i].set == s {
			return true
		}
	}
	return false
}

func (r *rule) leadsTo(chain string) bool {
	for i := range r.steps {
		if r.steps[i].verdict.Chain == chain {
			return true
		}
	}
	return false
}

// parser parses the expressions of a rule.
type parser struct {
	*text
	table *table
	// written are the registers of 32 bits that have a value.
	written [registers / 4]bool
	a       map[uint16][]byte // attributes of the expression
	steps   []step
}

var expressions = map[string]func(*parser) error{
	"meta": (*parser).meta, "payload": (*parser).payload, "ct": (*parser).conntrack, "fib": (*parser).fib,
	"cmp": (*parser).compare, "bitwise": (*parser).bitwise, "numgen": (*parser).numgen, "lookup": (*parser).lookup,
	"immediate": (*parser).immediate, "dynset": (*parser).learn, "nat": (*parser).translate, "masq": (*parser).masquerade,
	"redir": (*parser).redirect, "reject": (*parser).reject,
}

// parse parses the expressions of a rule.
func (r *rule) parse(t *table) error {
	p := &parser{table: t, text: &text{six: t.Family == unix.NFPROTO_IPV6}}
	for _, e := range r.Exprs {
		name := ""
		p.a = map[uint16][]byte{}
		for kind, value := range nlattr.All(e) {
			switch kind {
			case unix.NFTA_EXPR_NAME:
				name = nlattr.Text(value)
			case unix.NFTA_EXPR_DATA:
				p.a = maps.Collect(nlattr.All(value))
			}
		}
		parse, known := expressions[name]
		if !known {
			return unknownError{fmt.Sprintf("the expression %q", name)}
		}
		if err := parse(p); err != nil {
			return err
		}
	}
	r.steps, r.text = p.steps, p.String()
	return nil
}

func (p *parser) number(kind uint16) uint32 { return number(p.a[kind]) }

func (p *parser) has(kind uint16) bool { return p.a[kind] != nil }

// register is where a register begins; false: there is none.
func register(n uint32) (at int, ok bool) {
	switch {
	case n >= unix.NFT_REG_1 && n <= unix.NFT_REG_4:
		return int(n-unix.NFT_REG_1) * 16, true
	case n >= unix.NFT_REG32_00 && n <= unix.NFT_REG32_15:
		return int(n-unix.NFT_REG32_00) * 4, true
	}
	return 0, false
}

// place is where the registers begin that an attribute names.
func (p *parser) place(kind uint16, length int) (at int, err error) {
	at, ok := register(p.number(kind))
	switch {
	case !p.has(kind), length <= 0, ok && at < 0, p.number(kind) == unix.NFT_REG_VERDICT:
		return 0, unix.EINVAL
	case !ok, at+length > registers:
		return 0, unix.ERANGE
	}
	return at, nil
}

// from is where the registers begin from which an expression loads.
func (p *parser) from(kind uint16, length int) (int, error) {
	at, err := p.place(kind, length)
	for i := at / 4; err == nil && i < (at+length+3)/4; i++ {
		if !p.written[i] {
			return 0, unix.ENODATA
		}
	}
	return at, err
}

// to is where the registers begin to which an expression stores.
func (p *parser) to(kind uint16, length int, what symbol) (int, error) {
	at, err := p.place(kind, length)
	if err != nil {
		return 0, err
	}
	for i := at / 4; i < (at+length+3)/4; i++ {
		p.written[i], p.symbols[i] = true, symbol{}
	}
	p.symbols[at/4] = what
	return at, nil
}

func (p *parser) add(run func(w *walk, f *flow) nft.Verdict) {
	p.steps = append(p.steps, step{run: run})
}

// verdicts that expressions return.
var (
	goesOn = nft.Verdict{Code: unix.NFT_CONTINUE}
	breaks = nft.Verdict{Code: unix.NFT_BREAK}
)

// load adds a step that loads a value of so many bytes; get returns false to end the rule.
func (p *parser) load(length int, what symbol, get func(w *walk, f *flow) ([]byte, bool)) error {
	at, err := p.to(unix.NFTA_META_DREG, length, what) // all expressions number this attribute alike
	if err != nil {
		return err
	}
	p.add(func(w *walk, f *flow) nft.Verdict {
		value, ok := get(w, f)
		if !ok {
			return breaks
		}
		clear(f.registers[at : at+(length+3)&^3])
		copy(f.registers[at:at+length], value)
		return goesOn
	})
	return nil
}

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func (p *parser) meta() error {
	key := p.number(unix.NFTA_META_KEY)
	if p.has(unix.NFTA_META_SREG) {
		if key != unix.NFT_META_MARK || p.has(unix.NFTA_META_DREG) {
			return unknownError{fmt.Sprintf("setting meta key %d", key)}
		}
		at, err := p.from(unix.NFTA_META_SREG, 4)
		if err != nil {
			return err
		}
		p.set("meta mark", at)
		p.add(func(_ *walk, f *flow) nft.Verdict {
			f.mark = binary.NativeEndian.Uint32(f.registers[at:])
			return goesOn
		})
		return nil
	}
	switch key {
	case unix.NFT_META_L4PROTO:
		return p.load(1, symbol{name: "meta l4proto", kind: protocolType}, func(_ *walk, f *flow) ([]byte, bool) {
			return []byte{protocols[f.packet.Protocol]}, true
		})
	case unix.NFT_META_MARK:
		return p.load(4, symbol{name: "meta mark", kind: markType}, func(_ *walk, f *flow) ([]byte, bool) { return native(f.mark), true })
	case unix.NFT_META_IIFNAME:
		return p.load(unix.IFNAMSIZ, symbol{name: "iifname", kind: nameType}, func(_ *walk, f *flow) ([]byte, bool) {
			return append([]byte(f.packet.In), make([]byte, unix.IFNAMSIZ)...), true
		})
	}
	return unknownError{fmt.Sprintf("meta key %d", key)}
}

// payload loads from the addresses or the destination port.
func (p *parser) payload() error {
	base, offset, length := p.number(unix.NFTA_PAYLOAD_BASE), p.number(unix.NFTA_PAYLOAD_OFFSET), p.number(unix.NFTA_PAYLOAD_LEN)
	source, size := uint32(12), uint32(4)
	if p.six {
		source, size = 8, 16
	}
	destination := source + size
	within := func(begin uint32) bool { return offset >= begin && offset < begin+size && length <= begin+size-offset }
	if _, err := p.place(unix.NFTA_PAYLOAD_DREG, int(length)); err != nil {
		return err
	}
	switch {
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && offset == 2 && length == 2:
		return p.load(2, symbol{name: "th dport", kind: portType}, func(_ *walk, f *flow) ([]byte, bool) {
			return binary.BigEndian.AppendUint16(nil, f.packet.Destination.Port()), true
		})
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && within(source):
		return p.load(int(length), p.address("saddr", offset-source, length), func(_ *walk, f *flow) ([]byte, bool) {
			return f.packet.Source.AsSlice()[offset-source:][:length], true
		})
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && within(destination):
		return p.load(int(length), p.address("daddr", offset-destination, length), func(_ *walk, f *flow) ([]byte, bool) {
			return f.packet.Destination.Addr().AsSlice()[offset-destination:][:length], true
		})
	}
	return unknownError{fmt.Sprintf("%d bytes at %d of header %d", length, offset, base)}
}

// conntrack loads what is known of the packet's connection; an invalid packet has none.
func (p *parser) conntrack() error {
	key := p.number(unix.NFTA_CT_KEY)
	direction, directed := p.a[unix.NFTA_CT_DIRECTION]
	original := directed && bytes.Equal(direction, []byte{0})
	tracked := func(f *flow) bool { return f.packet.State != invalid }
	switch {
	case key == unix.NFT_CT_STATE && !directed:
		return p.load(4, symbol{name: "ct state", bits: stateBits}, func(_ *walk, f *flow) ([]byte, bool) {
			return native(states[f.packet.State]), true
		})
	case key == unix.NFT_CT_STATUS && !directed:
		return p.load(4, symbol{name: "ct status", bits: statusBits}, func(_ *walk, f *flow) ([]byte, bool) {
			var status uint32
			if f.moved {
				status |= statusDNAT
			}
			if f.masqueraded {
				status |= statusSNAT
			}
			return native(status), tracked(f)
		})
	case original && (key == unix.NFT_CT_DST_IP && !p.six || key == unix.NFT_CT_DST_IP6 && p.six):
		what := p.address("daddr", 0, p.addressLength())
		what.name = "ct original " + what.name
		return p.load(int(p.addressLength()), what, func(_ *walk, f *flow) ([]byte, bool) { return f.original.Addr().AsSlice(), tracked(f) })
	case original && key == unix.NFT_CT_PROTO_DST:
		return p.load(2, symbol{name: "ct original proto-dst", kind: portType}, func(_ *walk, f *flow) ([]byte, bool) {
			return binary.BigEndian.AppendUint16(nil, f.original.Port()), tracked(f)
		})
	}
	return unknownError{fmt.Sprintf("ct key %d", key)}
}

// fib loads the type of an address.
func (p *parser) fib() error {
	flags := p.number(unix.NFTA_FIB_FLAGS)
	name := map[uint32]string{unix.NFTA_FIB_F_SADDR: "fib saddr type", unix.NFTA_FIB_F_DADDR: "fib daddr type"}[flags]
	if p.number(unix.NFTA_FIB_RESULT) != unix.NFT_FIB_RESULT_ADDRTYPE || name == "" {
		return unknownError{fmt.Sprintf("fib with flags %d", flags)}
	}
	return p.load(4, symbol{name: name, kind: addressTypeType}, func(w *walk, f *flow) ([]byte, bool) {
		a := f.packet.Source
		if flags == unix.NFTA_FIB_F_DADDR {
			a = f.packet.Destination.Addr()
		}
		if w.Local(a) {
			return native(unix.RTN_LOCAL), true
		}
		return native(unix.RTN_UNICAST), true
	})
}

func (p *parser) compare() error {
	_, value := nft.ParseData(p.a[unix.NFTA_CMP_DATA])
	at, err := p.from(unix.NFTA_CMP_SREG, len(value))
	if err != nil {
		return err
	}
	op := p.number(unix.NFTA_CMP_OP)
	holds, known := map[uint32]func(int) bool{
		unix.NFT_CMP_EQ: func(c int) bool { return c == 0 }, unix.NFT_CMP_NEQ: func(c int) bool { return c != 0 },
		unix.NFT_CMP_LT: func(c int) bool { return c < 0 }, unix.NFT_CMP_LTE: func(c int) bool { return c <= 0 },
		unix.NFT_CMP_GT: func(c int) bool { return c > 0 }, unix.NFT_CMP_GTE: func(c int) bool { return c >= 0 },
	}[op]
	if !known {
		return unix.EINVAL
	}
	value = bytes.Clone(value)
	p.comparison(at, op, value)
	p.add(func(_ *walk, f *flow) nft.Verdict {
		if holds(bytes.Compare(f.registers[at:at+len(value)], value)) {
			return goesOn
		}
		return breaks
	})
	return nil
}

func (p *parser) bitwise() error {
	length := int(p.number(unix.NFTA_BITWISE_LEN))
	_, mask := nft.ParseData(p.a[unix.NFTA_BITWISE_MASK])
	_, other := nft.ParseData(p.a[unix.NFTA_BITWISE_XOR])
	from, err := p.from(unix.NFTA_BITWISE_SREG, length)
	if err != nil {
		return err
	}
	if len(mask) != length || len(other) != length {
		return unix.EINVAL
	}
	if op := p.number(bitwiseOp); op != 0 {
		return unknownError{fmt.Sprintf("bitwise operation %d", op)}
	}
	mask, other = bytes.Clone(mask), bytes.Clone(other)
	what := p.symbols[from/4]
	what.mask, what.xor = mask, other
	to, err := p.to(unix.NFTA_BITWISE_DREG, length, what)
	if err != nil {
		return err
	}
	p.add(func(_ *walk, f *flow) nft.Verdict {
		for i := range mask {
			f.registers[to+i] = f.registers[from+i]&mask[i] ^ other[i]
		}
		return goesOn
	})
	return nil
}

// bitwiseOp is NFTA_BITWISE_OP.
const bitwiseOp = 6

func (p *parser) numgen() error {
	s := step{modulus: p.number(unix.NFTA_NG_MODULUS), offset: p.number(unix.NFTA_NG_OFFSET)}
	if p.number(unix.NFTA_NG_TYPE) != unix.NFT_NG_RANDOM {
		return unknownError{"numgen inc"}
	}
	if s.modulus == 0 {
		return unix.ERANGE
	}
	if s.offset+s.modulus-1 < s.offset {
		return unix.EOVERFLOW
	}
	var err error
	s.random, err = p.to(unix.NFTA_NG_DREG, 4, symbol{name: fmt.Sprintf("numgen random mod %d", s.modulus), kind: markType})
	p.steps = append(p.steps, s)
	return err
}

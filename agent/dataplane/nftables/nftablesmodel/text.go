package nftablesmodel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
)

// valueType is a type of values, as the program nft numbers those of keys.
type valueType uint32

const (
	ipv4Type     valueType = 7
	ipv6Type     valueType = 8
	protocolType valueType = 12
	portType     valueType = 13
	markType     valueType = 19
	// These are in no key.
	nameType        valueType = 1000
	addressTypeType valueType = 1001
)

// part is a part of a key or of data.
type part struct {
	kind   valueType
	length int
}

// aligned is its length up to the end of a register.
func (p part) aligned() int { return (p.length + 3) &^ 3 }

var lengths = map[valueType]int{ipv4Type: 4, ipv6Type: 16, protocolType: 1, portType: 2, markType: 4}

// typeBits are how many bits of the code of a concatenation each part takes.
const typeBits = 6

// partsOf are the parts of a key, or of data. One of unknown types has one part.
func partsOf(code, length uint32) []part {
	var out []part
	total := 0
	for rest := code; rest != 0; rest >>= typeBits {
		kind := valueType(rest & (1<<typeBits - 1))
		one := part{kind, lengths[kind]}
		if one.length == 0 {
			return []part{{0, int(length)}}
		}
		total += one.aligned()
		out = append([]part{one}, out...)
	}
	if len(out) == 1 {
		total = out[0].length
	}
	if total != int(length) {
		return []part{{0, int(length)}}
	}
	return out
}

// valueText prints a value.
func valueText(kind valueType, b []byte) string {
	switch {
	case (kind == ipv4Type || kind == ipv6Type) && (len(b) == 4 || len(b) == 16):
		a, _ := netip.AddrFromSlice(b)
		return a.String()
	case kind == protocolType && len(b) == 1:
		for name, number := range protocols {
			if number == b[0] {
				return name
			}
		}
		return fmt.Sprint(b[0])
	case kind == portType && len(b) == 2:
		return fmt.Sprint(binary.BigEndian.Uint16(b))
	case kind == nameType:
		name, _, exact := bytes.Cut(b, []byte{0})
		if exact {
			return fmt.Sprintf("%q", name)
		}
		return fmt.Sprintf("%q", string(name)+"*")
	case kind == addressTypeType && bytes.Equal(b, native(unix.RTN_LOCAL)):
		return "local"
	case kind == markType && len(b) == 4:
		return fmt.Sprintf("0x%08x", binary.NativeEndian.Uint32(b))
	}
	return fmt.Sprintf("%#x", b)
}

// partsText prints a key, or data. A number in a key is an index.
func partsText(parts []part, b []byte) string {
	var out []string
	at := 0
	for _, p := range parts {
		if len(b) < at+p.length {
			break
		}
		if p.kind == markType {
			out = append(out, fmt.Sprint(binary.NativeEndian.Uint32(b[at:])))
		} else {
			out = append(out, valueText(p.kind, b[at:at+p.length]))
		}
		at += p.aligned()
	}
	return strings.Join(out, " . ")
}

func verdictText(v nft.Verdict) string {
	switch v.Code {
	case unix.NFT_GOTO:
		return "goto " + v.Chain
	case unix.NFT_JUMP:
		return "jump " + v.Chain
	case unix.NFT_RETURN:
		return "return"
	case unix.NFT_CONTINUE, unix.NFT_BREAK:
		return "continue"
	case unix.NF_DROP:
		return "drop"
	}
	return "accept"
}

// looked describes a lookup of a key; nil: it was not found.
func (s *set) looked(table string, key []byte, e *element) kernelmodel.Step {
	out := kernelmodel.Step{Kind: kernelmodel.Set, Table: table, Chain: s.Name, Rule: partsText(s.key, key)}
	if s.is(unix.NFT_SET_MAP) {
		out.Kind = kernelmodel.Map
	}
	switch {
	case e == nil:
	case s.verdicts():
		out.Target = verdictText(e.Verdict)
	case s.is(unix.NFT_SET_MAP):
		out.Target = partsText(s.data, e.Data)
	default:
		out.Target = "found"
	}
	return out
}

// symbol is what a register has, for the text of a rule.
type symbol struct {
	name string
	kind valueType
	bits map[uint32]string // names of flags
	// mask and xor are of an operation on it; nil: none.
	mask, xor []byte
}

// text is the text of a rule while its expressions are parsed.
type text struct {
	six     bool
	symbols [registers / 4]symbol
	words   []string
}

func (t *text) String() string { return strings.Join(t.words, " ") }

func (t *text) family() string {
	if t.six {
		return "ip6"
	}
	return "ip"
}

func (t *text) addressLength() uint32 {
	if t.six {
		return 16
	}
	return 4
}

// address is the symbol of an address, or of a part of it.
func (t *text) address(field string, offset, length uint32) symbol {
	kind := ipv4Type
	if t.six {
		kind = ipv6Type
	}
	out := symbol{name: t.family() + " " + field, kind: kind}
	if offset != 0 || length != t.addressLength() {
		out.name = fmt.Sprintf("%s[%d:%d]", out.name, offset, offset+length)
	}
	return out
}

// joined are the symbols of a key from a register on.
func (t *text) joined(at int, parts []part) string {
	var out []string
	for _, p := range parts {
		if at/4 < len(t.symbols) {
			out = append(out, t.symbols[at/4].String())
		}
		at += p.aligned()
	}
	return strings.Join(out, " . ")
}

func (s symbol) String() string {
	if s.kind == ipv4Type || s.kind == ipv6Type {
		if s.mask == nil {
			return s.name
		}
		return s.name + " & " + valueText(s.kind, s.mask)
	}
	if s.mask == nil || len(s.mask) != 4 {
		return s.name
	}
	mask, xor := binary.NativeEndian.Uint32(s.mask), binary.NativeEndian.Uint32(s.xor)
	switch {
	case mask == ^xor:
		return fmt.Sprintf("%s | 0x%08x", s.name, xor)
	case mask == ^uint32(0):
		return fmt.Sprintf("%s ^ 0x%08x", s.name, xor)
	case xor == 0:
		return fmt.Sprintf("%s & 0x%08x", s.name, mask)
	}
	return fmt.Sprintf("%s & 0x%08x ^ 0x%08x", s.name, mask, xor)
}

func (t *text) set(what string, from int) {
	t.words = append(t.words, what+" set "+t.symbols[from/4].String())
}

// comparison adds the comparison of a register with a value.
func (t *text) comparison(at int, op uint32, value []byte) {
	s := t.symbols[at/4]
	operator := map[uint32]string{
		unix.NFT_CMP_EQ: "", unix.NFT_CMP_NEQ: "!= ", unix.NFT_CMP_LT: "< ", unix.NFT_CMP_LTE: "<= ", unix.NFT_CMP_GT: "> ", unix.NFT_CMP_GTE: ">= ",
	}[op]
	switch {
	case s.bits != nil && len(s.mask) == 4 && op == unix.NFT_CMP_NEQ && !bytes.ContainsFunc(value, func(r rune) bool { return r != 0 }):
		var names []string
		for mask := binary.NativeEndian.Uint32(s.mask); mask != 0; mask &= mask - 1 {
			bit := mask & -mask
			if name := s.bits[bit]; name != "" {
				names = append(names, name)
			} else {
				names = append(names, fmt.Sprintf("%#x", bit))
			}
		}
		t.words = append(t.words, s.name+" "+strings.Join(names, ","))
	case (s.kind == ipv4Type || s.kind == ipv6Type) && s.mask != nil:
		ones := 0
		for _, b := range s.mask {
			ones += bits.OnesCount8(b)
		}
		t.words = append(t.words, fmt.Sprintf("%s %s%s/%d", s.name, operator, valueText(s.kind, value), ones))
	default:
		t.words = append(t.words, s.String()+" "+operator+valueText(s.kind, value))
	}
}

// durationText prints a time as the program nft does.
func durationText(d time.Duration) string {
	var out strings.Builder
	for _, unit := range []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := d / unit.of; n > 0 {
			fmt.Fprintf(&out, "%d%s", int64(n), unit.name)
			d -= n * unit.of
		}
	}
	return out.String()
}

package nft

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// Chain is a chain that the kernel has.
type Chain struct {
	Name string
	// Hook is nil but for base chains.
	Hook *Hook
}

// Rule is a rule that the kernel has.
type Rule struct {
	Chain   string
	Handle  uint64
	Comment string
	Exprs   []Expr
}

// ListedSet is a set or a map that the kernel has.
type ListedSet struct {
	Name                         string
	Flags                        uint32
	KeyType, KeyLength           uint32
	DataType, DataLength, Length uint32
	// Timeout is how long elements stay; 0: they do not expire, unless an element has its own.
	Timeout time.Duration
}

// Is reports whether the set is as described.
func (l *ListedSet) Is(s *Set) bool {
	keyType, keyLength := concatenated(s.Key)
	dataType, dataLength := concatenated(s.Data)
	if s.Verdicts {
		dataType, dataLength = unix.NFT_DATA_VERDICT, l.DataLength
	}
	return l.Flags == s.flags() && l.KeyType == keyType && l.KeyLength == keyLength &&
		l.DataType == dataType && l.DataLength == dataLength && l.Length == s.Size
}

// Ownership is who may change a table, and how long it stays.
type Ownership struct {
	// Port is that of the only socket that may change it (see Conn.Port); 0: any may.
	Port uint32
	// Persists: it stays when that socket is closed, and another one may own it then.
	Persists bool
	// Dormant: no packet meets its chains.
	Dormant bool
}

func parseTable(body []byte) Ownership {
	var o Ownership
	for kind, value := range nlattr.All(body) {
		switch kind {
		case unix.NFTA_TABLE_FLAGS:
			o.Persists = number(value)&unix.NFT_TABLE_F_PERSIST != 0
			o.Dormant = number(value)&unix.NFT_TABLE_F_DORMANT != 0
		case unix.NFTA_TABLE_OWNER:
			o.Port = number(value)
		}
	}
	return o
}

func parseChain(body []byte) (table string, c Chain) {
	var kindOf string
	drops := false
	for kind, value := range nlattr.All(body) {
		switch kind {
		case unix.NFTA_CHAIN_TABLE:
			table = nlattr.Text(value)
		case unix.NFTA_CHAIN_NAME:
			c.Name = nlattr.Text(value)
		case unix.NFTA_CHAIN_TYPE:
			kindOf = nlattr.Text(value)
		case unix.NFTA_CHAIN_POLICY:
			drops = number(value) != unix.NF_ACCEPT
		case unix.NFTA_CHAIN_HOOK:
			c.Hook = &Hook{}
			for kind, value := range nlattr.All(value) {
				switch kind {
				case unix.NFTA_HOOK_HOOKNUM:
					c.Hook.Number = number(value)
				case unix.NFTA_HOOK_PRIORITY:
					c.Hook.Priority = int32(number(value)) //nolint:gosec // as the kernel has it
				}
			}
		}
	}
	if c.Hook != nil {
		c.Hook.Type, c.Hook.Drops = kindOf, drops
	}
	return table, c
}

func parseRule(body []byte) (table string, r Rule) {
	for kind, value := range nlattr.All(body) {
		switch kind {
		case unix.NFTA_RULE_TABLE:
			table = nlattr.Text(value)
		case unix.NFTA_RULE_CHAIN:
			r.Chain = nlattr.Text(value)
		case unix.NFTA_RULE_HANDLE:
			r.Handle = long(value)
		case unix.NFTA_RULE_USERDATA:
			r.Comment = parseComment(value)
		case unix.NFTA_RULE_EXPRESSIONS:
			for _, e := range nlattr.All(value) {
				r.Exprs = append(r.Exprs, slices.Clone(e))
			}
		}
	}
	return table, r
}

func parseSet(body []byte) (table string, s ListedSet) {
	for kind, value := range nlattr.All(body) {
		switch kind {
		case unix.NFTA_SET_TABLE:
			table = nlattr.Text(value)
		case unix.NFTA_SET_NAME:
			s.Name = nlattr.Text(value)
		case unix.NFTA_SET_FLAGS:
			s.Flags = number(value)
		case unix.NFTA_SET_KEY_TYPE:
			s.KeyType = number(value)
		case unix.NFTA_SET_KEY_LEN:
			s.KeyLength = number(value)
		case unix.NFTA_SET_DATA_TYPE:
			s.DataType = number(value)
		case unix.NFTA_SET_DATA_LEN:
			s.DataLength = number(value)
		case unix.NFTA_SET_TIMEOUT:
			s.Timeout = time.Duration(long(value)) * time.Millisecond //nolint:gosec // as the kernel has it
		case unix.NFTA_SET_DESC:
			for kind, value := range nlattr.All(value) {
				if kind == unix.NFTA_SET_DESC_SIZE {
					s.Length = number(value)
				}
			}
		}
	}
	return table, s
}

// parseElements yields the elements in a message. They are valid until yield returns.
func parseElements(body []byte, yield func(*Element)) {
	for kind, value := range nlattr.All(body) {
		if kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			continue
		}
		for _, one := range nlattr.All(value) {
			e := parseElement(one)
			yield(&e)
		}
	}
}

func parseElement(b []byte) Element {
	var e Element
	for kind, value := range nlattr.All(b) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			_, e.Key = ParseData(value)
		case unix.NFTA_SET_ELEM_KEY_END:
			_, e.End = ParseData(value)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.IntervalEnd = number(value)&unix.NFT_SET_ELEM_INTERVAL_END != 0
			e.CatchAll = number(value)&unix.NFT_SET_ELEM_CATCHALL != 0
		case unix.NFTA_SET_ELEM_DATA:
			e.Verdict, e.Data = ParseData(value)
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = parseComment(value)
		}
	}
	return e
}

func parseVerdict(b []byte) Verdict {
	v := Verdict{isSet: true}
	for kind, value := range nlattr.All(b) {
		switch kind {
		case unix.NFTA_VERDICT_CODE:
			v.Code = int32(number(value)) //nolint:gosec // as the kernel has it
		case unix.NFTA_VERDICT_CHAIN:
			v.Chain = nlattr.Text(value)
		}
	}
	return v
}

// parseComment returns the comment in user data.
func parseComment(b []byte) string {
	for len(b) >= 2 {
		kind, length := b[0], int(b[1])
		if length > len(b)-2 {
			return ""
		}
		if kind == userDataComment {
			return nlattr.Text(b[2 : 2+length])
		}
		b = b[2+length:]
	}
	return ""
}

// number is a number of 32 bits in network byte order; 0 if it is not one.
func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// long is a number of 64 bits in network byte order; 0 if it is not one.
func long(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// Same reports whether listed expressions do what those do that were written. The kernel lists
// attributes besides: those of the end of a range of addresses or ports to translate to equal the begin's,
// others are zero.
func Same(written, listed []Expr) bool {
	return slices.EqualFunc(written, listed, func(w, l Expr) bool {
		translates := false
		for kind, value := range nlattr.All(w) {
			translates = translates || kind == unix.NFTA_EXPR_NAME && nlattr.Text(value) == "nat"
		}
		return sameAttributes(w, l, translates)
	})
}

func sameAttributes(written, listed []byte, ranges bool) bool {
	their := maps.Collect(nlattr.All(listed))
	var values [][]byte
	for kind, value := range nlattr.All(written) {
		other, found := their[kind]
		if !found || !bytes.Equal(value, other) && !sameNested(value, other, ranges) {
			return false
		}
		values = append(values, value)
		delete(their, kind)
	}
	for _, value := range their {
		zero := !slices.ContainsFunc(value, func(b byte) bool { return b != 0 })
		if !zero && (!ranges || !slices.ContainsFunc(values, func(v []byte) bool { return bytes.Equal(v, value) })) {
			return false
		}
	}
	return true
}

// sameNested compares values that consist of attributes.
func sameNested(written, listed []byte, ranges bool) bool {
	isNested := func(b []byte) bool {
		return len(b) > 4 && nlattr.Each(b, func(uint16, []byte) bool { return true })
	}
	return isNested(written) && isNested(listed) && sameAttributes(written, listed, ranges)
}

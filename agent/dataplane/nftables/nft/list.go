package nft

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

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

// parseTable returns the flags of a table.
func parseTable(body []byte) (flags uint32) {
	for kind, value := range nlattr.All(body) {
		if kind == unix.NFTA_TABLE_FLAGS {
			flags = number(value)
		}
	}
	return flags
}

func parseChain(body []byte) (table string, c Chain) {
	var kindOf string
	for kind, value := range nlattr.All(body) {
		switch kind {
		case unix.NFTA_CHAIN_TABLE:
			table = nlattr.Text(value)
		case unix.NFTA_CHAIN_NAME:
			c.Name = nlattr.Text(value)
		case unix.NFTA_CHAIN_TYPE:
			kindOf = nlattr.Text(value)
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
		c.Hook.Type = kindOf
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
			e.Key = parseValue(value)
		case attrElementKeyEnd:
			e.End = parseValue(value)
		case unix.NFTA_SET_ELEM_DATA:
			for kind, value := range nlattr.All(value) {
				switch kind {
				case unix.NFTA_DATA_VALUE:
					e.Data = value
				case unix.NFTA_DATA_VERDICT:
					e.Verdict = parseVerdict(value)
				}
			}
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = parseComment(value)
		}
	}
	return e
}

func parseValue(b []byte) []byte {
	for kind, value := range nlattr.All(b) {
		if kind == unix.NFTA_DATA_VALUE {
			return value
		}
	}
	return nil
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
// attributes besides: those of the end of a range equal the begin's, others are zero.
func Same(written, listed []Expr) bool {
	return slices.EqualFunc(written, listed, func(w, l Expr) bool { return sameAttributes(w, l) })
}

func sameAttributes(written, listed []byte) bool {
	their := maps.Collect(nlattr.All(listed))
	var values [][]byte
	for kind, value := range nlattr.All(written) {
		other, found := their[kind]
		if !found || !bytes.Equal(value, other) && !sameNested(value, other) {
			return false
		}
		values = append(values, value)
		delete(their, kind)
	}
	for _, value := range their {
		zero := !slices.ContainsFunc(value, func(b byte) bool { return b != 0 })
		if !zero && !slices.ContainsFunc(values, func(v []byte) bool { return bytes.Equal(v, value) }) {
			return false
		}
	}
	return true
}

// sameNested compares values that consist of attributes.
func sameNested(written, listed []byte) bool {
	isNested := func(b []byte) bool {
		return len(b) > 4 && nlattr.Each(b, func(uint16, []byte) bool { return true })
	}
	return isNested(written) && isNested(listed) && sameAttributes(written, listed)
}

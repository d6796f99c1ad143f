package nft

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// Table names a table. Its family is unix.NFPROTO_IPV4 or unix.NFPROTO_IPV6.
type Table struct {
	Family byte
	Name   string
}

// Hook is where packets enter a base chain.
type Hook struct {
	// Type is nat or filter.
	Type string
	// Number is one of unix.NF_INET_*.
	Number uint32
	// Priority orders the base chains of a hook: lower ones come first.
	Priority int32
	// Drops: packets that no rule decides on are dropped. Only listed.
	Drops bool
}

// Set describes a set, or a map.
type Set struct {
	Name string
	// Key are the types of the parts of the key.
	Key []Type
	// Data are the types of the parts of what a map maps to; Verdicts: a verdict.
	Data     []Type
	Verdicts bool
	// Dynamic: packets add elements, which expire.
	Dynamic bool
	// Size is the maximum number of elements; 0: no limit.
	Size    uint32
	Comment string
}

// Element is an element of a set, or a map.
type Element struct {
	Key []byte
	// End is the end of a range, inclusive, in a set of ranges. Only listed.
	End []byte
	// IntervalEnd: the range that begins with the element before ends before this one. Only listed.
	IntervalEnd bool
	// CatchAll: it stands for all keys that have none. It has no key, and can only be listed and deleted.
	CatchAll bool
	// Data is what a map maps to, but for verdicts.
	Data []byte
	// Verdict is what a map of verdicts maps to.
	Verdict Verdict
	Comment string
}

// Verdict is what becomes of a packet. The zero value is no verdict.
type Verdict struct {
	// Code is one of the unix.NFT_* verdicts, or that of Drop.
	Code int32
	// Chain is where unix.NFT_GOTO and unix.NFT_JUMP lead.
	Chain string
	isSet bool
}

// Drop drops a packet.
func Drop() Verdict { return Verdict{Code: unix.NF_DROP, isSet: true} }

// Goto continues in a chain, and does not return.
func Goto(chain string) Verdict { return Verdict{Code: unix.NFT_GOTO, Chain: chain, isSet: true} }

// Return is the verdict that a packet goes on where it was before the last jump.
func Return() Verdict { return Verdict{Code: unix.NFT_RETURN, isSet: true} }

// Jump continues in a chain.
func Jump(chain string) Verdict { return Verdict{Code: unix.NFT_JUMP, Chain: chain, isSet: true} }

// Batch collects changes that the kernel makes all together or not at all. The zero value is
// empty and may be used again after Reset.
type Batch struct {
	messages []byte
	count    int
	last     int // where the last message begins
	// elements is where the length of the list of elements is that the last message ends with; 0:
	// it has none. These make it clear whether the next element fits there.
	elements     int
	elementsOf   string
	elementsKind int
}

// maxElements bounds the bytes of the elements of one message: the length of an attribute has 16
// bits.
const maxElements = 60 << 10

// MaxBatch bounds the bytes of a batch.
const MaxBatch = 40 << 20

// Check returns an error for a batch that is too large.
func (b *Batch) Check() error {
	if len(b.messages) > MaxBatch {
		return fmt.Errorf("the batch has %d bytes, more than %d", len(b.messages), MaxBatch)
	}
	return nil
}

// Len is the number of messages.
func (b *Batch) Len() int { return b.count }

// Size is the number of bytes.
func (b *Batch) Size() int { return len(b.messages) }

// Reset empties the batch and retains its memory.
func (b *Batch) Reset() { *b = Batch{messages: b.messages[:0]} }

// begin begins a message, which end ends.
func (b *Batch) begin(t Table, kind, flags int) {
	b.elements = 0
	b.last = len(b.messages)
	b.count++
	b.messages = appendHeader(b.messages, unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_REQUEST|flags, b.count, t.Family, 0)
}

func (b *Batch) end() {
	binary.NativeEndian.PutUint32(b.messages[b.last:], uint32(len(b.messages)-b.last)) //nolint:gosec // small
}

// appendHeader appends the headers of a netlink message of netfilter, without its length.
func appendHeader(b []byte, kind, flags, sequence int, family byte, resource uint16) []byte {
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, uint16(kind))     //nolint:gosec // a constant
	b = binary.NativeEndian.AppendUint16(b, uint16(flags))    //nolint:gosec // constants
	b = binary.NativeEndian.AppendUint32(b, uint32(sequence)) //nolint:gosec // a count
	b = binary.NativeEndian.AppendUint32(b, 0)
	return binary.BigEndian.AppendUint16(append(b, family, unix.NFNETLINK_V0), resource)
}

func (b *Batch) text(kind uint16, text string) {
	b.messages = nlattr.AppendText(b.messages, kind, text)
}

func (b *Batch) number(kind uint16, n uint32) {
	b.messages = nlattr.AppendUint32(b.messages, kind, n)
}

func (b *Batch) comment(kind uint16, text string) {
	if text != "" {
		b.messages = nlattr.Append(b.messages, kind, commentData(text))
	}
}

// Comment returns a comment as the kernel will have it: nft shows so many bytes.
func Comment(text string) string { return text[:min(len(text), maxComment)] }

// commentData is the user data in which the program nft keeps a comment.
func commentData(text string) []byte {
	text = Comment(text)
	return append(append([]byte{userDataComment, byte(len(text) + 1)}, text...), 0)
}

// AddTable creates a table, or does nothing if there is one. With owned, only this socket may change
// it afterwards, and it stays when the socket is closed: then another one may own it. Kernels before
// Linux 6.9 reject that, and all do for a table that does not persist.
func (b *Batch) AddTable(t Table, comment string, owned bool) {
	b.begin(t, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	b.text(unix.NFTA_TABLE_NAME, t.Name)
	if owned {
		b.number(unix.NFTA_TABLE_FLAGS, unix.NFT_TABLE_F_OWNER|unix.NFT_TABLE_F_PERSIST)
	}
	b.comment(unix.NFTA_TABLE_USERDATA, comment)
	b.end()
}

// DeleteTable deletes a table with all that is in it.
func (b *Batch) DeleteTable(t Table) {
	b.begin(t, unix.NFT_MSG_DELTABLE, 0)
	b.text(unix.NFTA_TABLE_NAME, t.Name)
	b.end()
}

// AddChain creates a chain, or does nothing if there is one. Hook is nil but for base chains.
func (b *Batch) AddChain(t Table, name string, hook *Hook) {
	b.begin(t, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE)
	b.text(unix.NFTA_CHAIN_TABLE, t.Name)
	b.text(unix.NFTA_CHAIN_NAME, name)
	if hook != nil {
		var at int
		b.messages, at = nlattr.Open(b.messages, unix.NFTA_CHAIN_HOOK)
		b.number(unix.NFTA_HOOK_HOOKNUM, hook.Number)
		b.number(unix.NFTA_HOOK_PRIORITY, uint32(hook.Priority)) //nolint:gosec // as the kernel has it
		nlattr.Close(b.messages, at)
		b.number(unix.NFTA_CHAIN_POLICY, unix.NF_ACCEPT)
		b.text(unix.NFTA_CHAIN_TYPE, hook.Type)
	}
	b.end()
}

// DeleteChain deletes a chain with its rules.
func (b *Batch) DeleteChain(t Table, name string) {
	b.FlushChain(t, name)
	b.begin(t, unix.NFT_MSG_DELCHAIN, 0)
	b.text(unix.NFTA_CHAIN_TABLE, t.Name)
	b.text(unix.NFTA_CHAIN_NAME, name)
	b.end()
}

// FlushChain deletes the rules of a chain.
func (b *Batch) FlushChain(t Table, name string) {
	b.begin(t, unix.NFT_MSG_DELRULE, 0)
	b.text(unix.NFTA_RULE_TABLE, t.Name)
	b.text(unix.NFTA_RULE_CHAIN, name)
	b.end()
}

// AddRule appends a rule to a chain.
func (b *Batch) AddRule(t Table, chain, comment string, rule ...Expr) {
	b.begin(t, unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND)
	b.text(unix.NFTA_RULE_TABLE, t.Name)
	b.text(unix.NFTA_RULE_CHAIN, chain)
	var at int
	b.messages, at = nlattr.Open(b.messages, unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range rule {
		b.messages = nlattr.Append(b.messages, unix.NFTA_LIST_ELEM|nlattr.Nested, e)
	}
	nlattr.Close(b.messages, at)
	b.comment(unix.NFTA_RULE_USERDATA, comment)
	b.end()
}

// AddSet creates a set or a map, or does nothing if there is one of the same description.
func (b *Batch) AddSet(t Table, s *Set) {
	b.begin(t, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE)
	b.text(unix.NFTA_SET_TABLE, t.Name)
	b.text(unix.NFTA_SET_NAME, s.Name)
	b.number(unix.NFTA_SET_FLAGS, s.flags())
	kind, length := concatenated(s.Key)
	b.number(unix.NFTA_SET_KEY_TYPE, kind)
	b.number(unix.NFTA_SET_KEY_LEN, length)
	switch kind, length := concatenated(s.Data); {
	case s.Verdicts:
		b.number(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	case len(s.Data) > 0:
		b.number(unix.NFTA_SET_DATA_TYPE, kind)
		b.number(unix.NFTA_SET_DATA_LEN, length)
	}
	b.number(unix.NFTA_SET_ID, uint32(b.count)) //nolint:gosec // a count
	b.describe(s)
	b.end()
}

// DeleteSet deletes a set or a map with its elements.
func (b *Batch) DeleteSet(t Table, name string) {
	b.begin(t, unix.NFT_MSG_DELSET, 0)
	b.text(unix.NFTA_SET_TABLE, t.Name)
	b.text(unix.NFTA_SET_NAME, name)
	b.end()
}

func (b *Batch) describe(s *Set) {
	if s.Size == 0 {
		return
	}
	var desc int
	b.messages, desc = nlattr.Open(b.messages, unix.NFTA_SET_DESC)
	b.number(unix.NFTA_SET_DESC_SIZE, s.Size)
	nlattr.Close(b.messages, desc)
}

func (s *Set) flags() uint32 {
	var flags uint32
	if s.Verdicts || len(s.Data) > 0 {
		flags |= unix.NFT_SET_MAP
	}
	if s.Dynamic {
		flags |= unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL
	}
	return flags
}

// AddElement adds an element. The kernel rejects the batch if the set has one of the same key and
// other data. Consecutive elements of a set share messages.
func (b *Batch) AddElement(t Table, set string, e *Element) {
	b.element(t, set, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, e)
}

// DeleteElement deletes an element by its key. The kernel rejects the batch if there is none.
func (b *Batch) DeleteElement(t Table, set string, e *Element) {
	b.element(t, set, unix.NFT_MSG_DELSETELEM, 0, e)
}

func (b *Batch) element(t Table, set string, kind, flags int, e *Element) {
	if b.elements == 0 || b.elementsOf != set || b.elementsKind != kind || len(b.messages)-b.elements > maxElements {
		b.begin(t, kind, flags)
		b.text(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
		b.text(unix.NFTA_SET_ELEM_LIST_SET, set)
		b.messages, b.elements = nlattr.Open(b.messages, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		b.elementsOf, b.elementsKind = set, kind
	}
	m, at := nlattr.Open(b.messages, unix.NFTA_LIST_ELEM)
	if e.CatchAll {
		m = nlattr.AppendUint32(m, unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_CATCHALL)
	} else {
		m = appendValue(m, unix.NFTA_SET_ELEM_KEY, e.Key)
	}
	if kind == unix.NFT_MSG_NEWSETELEM {
		switch {
		case e.Verdict.isSet:
			m = appendVerdict(m, unix.NFTA_SET_ELEM_DATA, e.Verdict)
		case e.Data != nil:
			m = appendValue(m, unix.NFTA_SET_ELEM_DATA, e.Data)
		}
		if e.Comment != "" {
			m = nlattr.Append(m, unix.NFTA_SET_ELEM_USERDATA, commentData(e.Comment))
		}
	}
	nlattr.Close(m, at)
	nlattr.Close(m, b.elements)
	b.messages = m
	b.end()
}

// appendValue appends an attribute that consists of a value.
func appendValue(b []byte, kind uint16, value []byte) []byte {
	b, at := nlattr.Open(b, kind)
	b = nlattr.Append(b, unix.NFTA_DATA_VALUE, value)
	nlattr.Close(b, at)
	return b
}

func appendVerdict(b []byte, kind uint16, v Verdict) []byte {
	b, data := nlattr.Open(b, kind)
	b, at := nlattr.Open(b, unix.NFTA_DATA_VERDICT)
	b = nlattr.AppendUint32(b, unix.NFTA_VERDICT_CODE, uint32(v.Code)) //nolint:gosec // as the kernel has it
	if v.Chain != "" {
		b = nlattr.AppendText(b, unix.NFTA_VERDICT_CHAIN, v.Chain)
	}
	nlattr.Close(b, at)
	nlattr.Close(b, data)
	return b
}

// milliseconds is how the kernel has a time.
func milliseconds(d time.Duration) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(d.Milliseconds())) //nolint:gosec // not negative
}

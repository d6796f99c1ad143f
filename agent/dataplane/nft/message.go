package nft

import (
	"iter"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// Message is a message of a batch, as the kernel gets it.
type Message struct {
	// Kind is one of unix.NFT_MSG_*, Flags are of unix.NLM_F_*.
	Kind, Flags uint16
	Family      byte
	// Attributes are what follows the headers. They are the batch's.
	Attributes []byte
}

// Messages yields the messages of the batch.
func (b *Batch) Messages() iter.Seq[Message] {
	return func(yield func(Message) bool) {
		for m := range messages(b.messages) {
			if !yield(Message{m.kind, m.flags &^ unix.NLM_F_REQUEST, m.family, m.body}) {
				return
			}
		}
	}
}

// Append appends a message. The methods for what the data plane writes are shorter.
func (b *Batch) Append(m Message) {
	b.begin(Table{Family: m.Family}, int(m.Kind), int(m.Flags))
	b.messages = append(b.messages, m.Attributes...)
	b.messages = append(b.messages, make([]byte, -len(b.messages)&3)...)
	b.end()
}

// Table is the table that the message is about.
func (m *Message) Table() Table {
	for kind, value := range nlattr.All(m.Attributes) {
		if kind == unix.NFTA_TABLE_NAME { // of all kinds of messages
			return Table{m.Family, nlattr.Text(value)}
		}
	}
	return Table{Family: m.Family}
}

// Chain is the chain that the message describes.
func (m *Message) Chain() Chain {
	_, c := parseChain(m.Attributes)
	return c
}

// Rule is the rule that the message describes.
func (m *Message) Rule() Rule {
	_, r := parseRule(m.Attributes)
	return r
}

// Set is the set or the map that the message describes.
func (m *Message) Set() ListedSet {
	_, s := parseSet(m.Attributes)
	return s
}

// Elements calls yield with the elements in the message, which are the batch's.
func (m *Message) Elements(yield func(*Element)) { parseElements(m.Attributes, yield) }

// IsSet reports whether it is a verdict.
func (v Verdict) IsSet() bool { return v.isSet }

// ParseData parses the verdict or the value in an attribute such as unix.NFTA_IMMEDIATE_DATA.
func ParseData(b []byte) (v Verdict, value []byte) {
	for kind, part := range nlattr.All(b) {
		switch kind {
		case unix.NFTA_DATA_VALUE:
			value = part
		case unix.NFTA_DATA_VERDICT:
			v = parseVerdict(part)
		}
	}
	return v, value
}

// Clone copies what is the batch's.
func (e *Element) Clone() Element {
	out := *e
	out.Key, out.End, out.Data = slices.Clone(e.Key), slices.Clone(e.End), slices.Clone(e.Data)
	return out
}

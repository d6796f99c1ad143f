package nft

import (
	"fmt"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// Describe names what of a batch the kernel has rejected, human-readable.
func (b *Batch) Describe(of *RejectedError) string {
	n := 0
	for m := range messages(b.messages) {
		if n == of.Message {
			return describe(m, of.Offset)
		}
		n++
	}
	return "batches"
}

// describe names what a message adds, or the expression at an offset in it.
func describe(m message, offset int) string {
	texts := map[uint16]string{}
	expressions := ""
	at := headerLength + familyLength
	for kind, value := range nlattr.All(m.body) {
		texts[kind] = nlattr.Text(value)
		if m.kind == unix.NFT_MSG_NEWRULE && kind == unix.NFTA_RULE_EXPRESSIONS {
			expressions = expressionAt(value, offset-at-attributeHeader)
		}
		at += attributeSize(value)
	}
	switch m.kind {
	case unix.NFT_MSG_NEWRULE:
		return fmt.Sprintf("%s in a rule of chain %s", expressions, texts[unix.NFTA_RULE_CHAIN])
	case unix.NFT_MSG_NEWCHAIN:
		return "what chain " + texts[unix.NFTA_CHAIN_NAME] + " needs"
	case unix.NFT_MSG_NEWSET:
		return "what set " + texts[unix.NFTA_SET_NAME] + " needs"
	default:
		return "what table " + texts[unix.NFTA_TABLE_NAME] + " needs"
	}
}

// expressionAt names the expression at an offset in the expressions of a rule; all if none is there.
func expressionAt(list []byte, offset int) string {
	var all []string
	at := 0
	for _, e := range nlattr.All(list) {
		name := ""
		for kind, value := range nlattr.All(e) {
			if kind == unix.NFTA_EXPR_NAME {
				name = nlattr.Text(value)
			}
		}
		if at == offset {
			return "expression " + name
		}
		all = append(all, name)
		at += attributeSize(e)
	}
	return "one of the expressions " + strings.Join(all, ", ")
}

// attributeHeader is the length of the header of an attribute.
const attributeHeader = 4

// attributeSize is how many bytes an attribute of a value takes.
func attributeSize(value []byte) int { return attributeHeader + (len(value)+3)&^3 }

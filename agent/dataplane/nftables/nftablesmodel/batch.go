package nftablesmodel

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// maxName is the longest name.
const maxName = 255

// batch is a batch while it is made.
type batch struct {
	*Kernel
	changed bool
	reverts []func()
	// validates: rules are validated after each message, not only at the end.
	validates bool
}

func (b *batch) undo(f func()) { b.reverts = append(b.reverts, f) }

func (b *batch) abort() {
	for _, f := range slices.Backward(b.reverts) {
		f()
	}
}

// unknownError is a message that the model does not know, which the kernel may.
type unknownError struct{ what string }

func (e unknownError) Error() string { return "the model does not know " + e.what }

// Commit makes a batch, all of it or nothing, as nft.Conn does.
func (k *Kernel) Commit(messages *nft.Batch, generation uint32) error {
	if messages.Len() == 0 {
		return nil
	}
	if err := messages.Check(); err != nil {
		return err
	}
	if generation != 0 && generation != k.generation {
		return nft.ErrChanged
	}
	err := k.commit(messages, false)
	if errors.Is(err, errInvalid) {
		err = k.commit(messages, true) // as the kernel does, to find the message
	}
	return err
}

var errInvalid = errors.New("some rule is not allowed where it is")

func (k *Kernel) commit(messages *nft.Batch, validates bool) error {
	b := &batch{Kernel: k, validates: validates}
	handles := k.handles
	n := 0
	for m := range messages.Messages() {
		if err := b.change(&m); err != nil {
			b.abort()
			k.handles = handles
			return rejection(n, err)
		}
		n++
	}
	if !validates && k.validate() != nil {
		b.abort()
		k.handles = handles
		return errInvalid
	}
	if b.changed {
		if k.generation++; k.generation == 0 {
			k.generation = 1
		}
	}
	return nil
}

func rejection(message int, err error) error {
	if code, ok := errors.AsType[syscall.Errno](err); ok {
		return &nft.RejectedError{Message: message, Err: code}
	}
	return &nft.RejectedError{Message: message, Err: unix.EOPNOTSUPP, Text: err.Error()}
}

// change makes the change of one message.
func (b *batch) change(m *nft.Message) error {
	if !nlattr.Each(m.Attributes, func(uint16, []byte) bool { return true }) || m.Table().Name == "" || len(m.Table().Name) > maxName {
		return unix.EINVAL
	}
	if m.Family != unix.NFPROTO_IPV4 && m.Family != unix.NFPROTO_IPV6 {
		return unknownError{fmt.Sprintf("family %d", m.Family)}
	}
	var err error
	switch m.Kind {
	case unix.NFT_MSG_NEWTABLE:
		return b.addTable(m)
	case unix.NFT_MSG_DELTABLE:
		return b.deleteTable(m)
	case unix.NFT_MSG_NEWCHAIN:
		err = b.addChain(m)
	case unix.NFT_MSG_DELCHAIN:
		return b.deleteChain(m)
	case unix.NFT_MSG_NEWRULE:
		err = b.addRule(m)
	case unix.NFT_MSG_DELRULE:
		return b.deleteRules(m)
	case unix.NFT_MSG_NEWSET:
		return b.addSet(m)
	case unix.NFT_MSG_DELSET:
		return b.deleteSet(m)
	case unix.NFT_MSG_NEWSETELEM:
		err = b.changeElements(m)
	case unix.NFT_MSG_DELSETELEM:
		return b.changeElements(m)
	default:
		return unknownError{fmt.Sprintf("messages of kind %d", m.Kind)}
	}
	if err == nil && b.validates {
		err = b.validate()
	}
	return err
}

func (b *batch) addTable(m *nft.Message) error {
	id := m.Table()
	flags := uint32(0)
	for kind, value := range nlattr.All(m.Attributes) {
		if kind == unix.NFTA_TABLE_FLAGS {
			flags = number(value)
		}
	}
	have := b.tables[id]
	switch {
	case have != nil && m.Flags&unix.NLM_F_EXCL != 0:
		return unix.EEXIST
	case have != nil && m.Flags&unix.NLM_F_REPLACE != 0:
		return unix.EOPNOTSUPP
	case have != nil && have.flags == flags:
		return nil
	case have != nil:
		return unknownError{"changes of a table's flags"}
	}
	b.changed = true
	b.tables[id] = &table{Table: id, flags: flags, chains: map[string]*chain{}, sets: map[string]*set{}}
	b.undo(func() { delete(b.tables, id) })
	return nil
}

func (b *batch) deleteTable(m *nft.Message) error {
	id := m.Table()
	have := b.tables[id]
	if have == nil {
		return unix.ENOENT
	}
	b.changed = true
	delete(b.tables, id)
	b.undo(func() { b.tables[id] = have })
	return nil
}

func (b *batch) addChain(m *nft.Message) error {
	t := b.tables[m.Table()]
	c := &chain{Chain: m.Chain(), policy: unix.NF_ACCEPT}
	given := false
	for kind, value := range nlattr.All(m.Attributes) {
		if kind == unix.NFTA_CHAIN_POLICY {
			given, c.policy = true, int32(number(value)) //nolint:gosec // as the kernel has it
		}
	}
	switch {
	case t == nil:
		return unix.ENOENT
	case c.Name == "" || len(c.Name) > maxName:
		return unix.EINVAL
	}
	have := t.chains[c.Name]
	switch {
	case given && (have == nil && c.Hook == nil || have != nil && have.Hook == nil):
		return unix.EOPNOTSUPP
	case given && c.policy != unix.NF_ACCEPT && c.policy != unix.NF_DROP:
		return unix.EINVAL
	}
	if have != nil {
		switch {
		case m.Flags&unix.NLM_F_EXCL != 0:
			return unix.EEXIST
		case m.Flags&unix.NLM_F_REPLACE != 0:
			return unix.EOPNOTSUPP
		case c.Hook != nil && have.Hook == nil:
			return unix.EEXIST
		case c.Hook != nil && (c.Hook.Number != have.Hook.Number || c.Hook.Priority != have.Hook.Priority):
			return unix.EOPNOTSUPP
		case c.Hook != nil && c.Hook.Type != have.Hook.Type:
			return cmp.Or(checkType(c.Hook), error(unix.EEXIST))
		}
		b.changed = true
		if former := have.policy; given {
			have.policy = c.policy
			b.undo(func() { have.policy = former })
		}
		return nil
	}
	if err := checkHook(c.Hook); err != nil {
		return err
	}
	b.changed = true
	b.handles++
	c.handle = b.handles
	t.chains[c.Name] = c
	b.undo(func() { delete(t.chains, c.Name) })
	return nil
}

func checkType(h *nft.Hook) error {
	if h.Type != "nat" && h.Type != "filter" {
		return unix.ENOENT
	}
	return nil
}

// checkHook checks whether there may be a base chain.
func checkHook(h *nft.Hook) error {
	const conntrack = -200 // the priority of connection tracking
	if h == nil {
		return nil
	}
	if err := checkType(h); err != nil {
		return err
	}
	switch {
	case h.Number > unix.NF_INET_POST_ROUTING, h.Type == "nat" && h.Number == unix.NF_INET_FORWARD:
		return unix.EOPNOTSUPP
	case h.Type == "nat" && h.Priority <= conntrack:
		return unix.EOPNOTSUPP
	}
	return nil
}

func (b *batch) chainOf(m *nft.Message, name string) (*table, *chain) {
	t := b.tables[m.Table()]
	if t == nil {
		return nil, nil
	}
	return t, t.chains[name]
}

// deleteChain deletes a chain, with its rules, to which nothing leads.
func (b *batch) deleteChain(m *nft.Message) error {
	t, c := b.chainOf(m, m.Chain().Name)
	if c == nil {
		return unix.ENOENT
	}
	for _, of := range t.chains {
		for _, r := range of.rules {
			if r.leadsTo(c.Name) {
				return unix.EBUSY
			}
		}
	}
	for _, s := range t.sets {
		for _, e := range s.elements {
			if e.Verdict.Chain == c.Name {
				return unix.EBUSY
			}
		}
	}
	b.changed = true
	delete(t.chains, c.Name)
	b.undo(func() { t.chains[c.Name] = c })
	return nil
}

// check reports whether a verdict can be given.
func (t *table) check(v nft.Verdict) error {
	switch v.Code {
	case unix.NF_ACCEPT, unix.NF_DROP, unix.NFT_CONTINUE, unix.NFT_BREAK, unix.NFT_RETURN:
		return nil
	case unix.NFT_JUMP, unix.NFT_GOTO:
		switch to := t.chains[v.Chain]; {
		case v.Chain == "":
			return unix.EINVAL
		case to == nil:
			return unix.ENOENT
		case to.Hook != nil:
			return unix.EOPNOTSUPP
		}
		return nil
	}
	return unix.EINVAL
}

func (b *batch) addRule(m *nft.Message) error {
	r := &rule{Rule: m.Rule()}
	t, c := b.chainOf(m, r.Chain)
	switch {
	case c == nil:
		return unix.ENOENT
	case m.Flags&unix.NLM_F_CREATE == 0 || m.Flags&unix.NLM_F_REPLACE != 0:
		return unix.EINVAL
	}
	for i, e := range r.Exprs {
		r.Exprs[i] = slices.Clone(e)
	}
	if err := r.parse(t); err != nil {
		return err
	}
	b.changed = true
	b.handles++
	r.Handle = b.handles
	former := c.rules
	b.undo(func() { c.rules = former })
	if m.Flags&unix.NLM_F_APPEND != 0 {
		c.rules = append(slices.Clip(former), r)
	} else {
		c.rules = append([]*rule{r}, former...)
	}
	return nil
}

// deleteRules deletes a rule by its handle, or all rules of a chain or of the table.
func (b *batch) deleteRules(m *nft.Message) error {
	want := m.Rule()
	t, c := b.chainOf(m, want.Chain)
	switch {
	case t == nil, want.Chain != "" && c == nil, want.Handle != 0 && c == nil:
		return unix.ENOENT
	case want.Chain == "":
		for _, c := range t.chains {
			b.setRules(c, nil)
		}
	case want.Handle == 0:
		b.setRules(c, nil)
	default:
		i := slices.IndexFunc(c.rules, func(r *rule) bool { return r.Handle == want.Handle })
		if i < 0 {
			return unix.ENOENT
		}
		b.setRules(c, slices.Concat(c.rules[:i], c.rules[i+1:]))
	}
	return nil
}

func (b *batch) setRules(c *chain, rules []*rule) {
	former := c.rules
	b.changed = b.changed || len(rules) != len(former)
	c.rules = rules
	b.undo(func() { c.rules = former })
}

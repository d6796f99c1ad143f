package nftablesmodel

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// maxValue is the longest key or data in bytes.
const maxValue = 64

type set struct {
	nft.ListedSet
	key, data []part
	elements  map[string]*element // by key, or the beginning of a range
}

type element struct {
	nft.Element
	expires time.Duration // 0: never
}

func (s *set) is(flag uint32) bool { return s.Flags&flag != 0 }

func (s *set) verdicts() bool { return s.is(unix.NFT_SET_MAP) && s.DataType == unix.NFT_DATA_VERDICT }

func (k *Kernel) alive(e *element) bool { return e.expires == 0 || k.now < e.expires }

func (s *set) full() bool { return s.Length > 0 && len(s.elements) >= int(s.Length) }

// expire removes what has expired.
func (k *Kernel) expire(s *set) {
	for key, e := range s.elements {
		if !k.alive(e) {
			delete(s.elements, key)
		}
	}
}

// find returns the element that has a key; nil: none.
func (k *Kernel) find(s *set, key []byte) *element {
	if e := s.elements[string(key)]; e != nil && k.alive(e) {
		return e
	}
	return nil
}

// addSet adds a set.
func (b *batch) addSet(m *nft.Message) error {
	t := b.tables[m.Table()]
	s := &set{ListedSet: m.Set(), elements: map[string]*element{}}
	switch have := b.setOf(t, s.Name); {
	case t == nil, have == nil && m.Flags&unix.NLM_F_CREATE == 0:
		return unix.ENOENT
	case have != nil && m.Flags&unix.NLM_F_EXCL != 0:
		return unix.EEXIST
	case have != nil && m.Flags&unix.NLM_F_REPLACE != 0:
		return unix.EOPNOTSUPP
	case have != nil && have.ListedSet != s.ListedSet:
		return unix.EEXIST
	case have != nil:
		b.changed = true
		return nil
	}
	if s.Name == "" || s.KeyLength == 0 || s.KeyLength > maxValue || s.Flags&^supportedFlags != 0 {
		return unix.EINVAL
	}
	if s.is(unix.NFT_SET_MAP) {
		if !s.verdicts() && (s.DataLength == 0 || s.DataLength > maxValue) {
			return unix.EINVAL
		}
	} else if s.DataType != 0 || s.DataLength != 0 {
		return unix.EINVAL
	}
	s.key, s.data = partsOf(s.KeyType, s.KeyLength), partsOf(s.DataType, s.DataLength)
	b.changed = true
	t.sets[s.Name] = s
	b.undo(func() { delete(t.sets, s.Name) })
	return nil
}

const supportedFlags = unix.NFT_SET_MAP | unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL

// deleteSet deletes a set that no rule uses.
func (b *batch) deleteSet(m *nft.Message) error {
	t := b.tables[m.Table()]
	name := m.Set().Name
	s := b.setOf(t, name)
	if s == nil {
		return unix.ENOENT
	}
	for _, c := range t.chains {
		for _, r := range c.rules {
			if r.uses(s) {
				return unix.EBUSY
			}
		}
	}
	b.changed = true
	delete(t.sets, name)
	b.undo(func() { t.sets[name] = s })
	return nil
}

func (b *batch) setOf(t *table, name string) *set {
	if t == nil {
		return nil
	}
	return t.sets[name]
}

// changeElements adds or deletes elements.
func (b *batch) changeElements(m *nft.Message) error {
	t := b.tables[m.Table()]
	name, listed := "", false
	for kind, value := range nlattr.All(m.Attributes) {
		switch kind {
		case unix.NFTA_SET_ELEM_LIST_SET:
			name = nlattr.Text(value)
		case unix.NFTA_SET_ELEM_LIST_ELEMENTS:
			listed = true
		}
	}
	s := b.setOf(t, name)
	adds := m.Kind == unix.NFT_MSG_NEWSETELEM
	switch {
	case s == nil:
		return unix.ENOENT
	case !listed && adds:
		return unix.EINVAL
	case !listed:
		return b.flush(s)
	}
	var first error
	m.Elements(func(e *nft.Element) {
		if first != nil {
			return
		}
		if adds {
			first = b.addElement(t, s, e, m.Flags)
		} else {
			first = b.deleteElement(s, e)
		}
	})
	return first
}

func (b *batch) flush(s *set) error {
	if former := s.elements; len(former) > 0 {
		b.changed = true
		s.elements = map[string]*element{}
		b.undo(func() { s.elements = former })
	}
	return nil
}

func (s *set) checkKey(e *nft.Element) error {
	if len(e.Key) != int(s.KeyLength) || e.End != nil {
		return unix.EINVAL
	}
	return nil
}

func (b *batch) addElement(t *table, s *set, e *nft.Element, flags uint16) error {
	if err := s.checkKey(e); err != nil {
		return err
	}
	switch {
	case s.verdicts() != e.Verdict.IsSet():
		return unix.EINVAL
	case !s.verdicts() && len(e.Data) != int(s.DataLength):
		return unix.EINVAL
	}
	if e.Verdict.IsSet() {
		if err := t.check(e.Verdict); err != nil {
			return err
		}
	}
	one := &element{Element: e.Clone()}
	key := string(one.Key)
	if have := s.elements[key]; have != nil && b.alive(have) {
		if flags&unix.NLM_F_EXCL != 0 || have.Verdict != one.Verdict || !bytes.Equal(have.Data, one.Data) {
			return unix.EEXIST
		}
		return nil
	}
	if s.full() {
		if b.expire(s); s.full() {
			return unix.ENFILE
		}
	}
	b.changed = true
	s.elements[key] = one
	b.undo(func() { delete(s.elements, key) })
	return nil
}

func (b *batch) deleteElement(s *set, e *nft.Element) error {
	if err := s.checkKey(e); err != nil {
		return err
	}
	have := b.find(s, e.Key)
	if have == nil {
		return unix.ENOENT
	}
	b.changed = true
	key := string(have.Key)
	delete(s.elements, key)
	b.undo(func() { s.elements[key] = have })
	return nil
}

// number is a number of 32 bits in network byte order; 0 if it is not one.
func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

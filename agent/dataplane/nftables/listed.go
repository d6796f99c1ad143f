package nftables

import (
	"bytes"
	"iter"
	"maps"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// elements are those of a set in a listing; nil: none. Most elements of a table lead from a destination and an
// index to an endpoint. Those are packed, by destination: each takes the bytes of its data alone.
type elements struct {
	single map[string]*nft.Element // by key
	packed map[string]*series      // by key without the index; nil: the set has no indexes
	width  int                     // of the data of packed elements
	count  int                     // of packed elements
}

// series is the data of elements by their index. Zeros: there is none with that index.
type series struct {
	data  []byte
	count int
}

// newElements returns none yet. Indexed: the keys of the set end in an index.
func newElements(indexed bool) *elements {
	out := &elements{single: map[string]*nft.Element{}}
	if indexed {
		out.packed = map[string]*series{}
	}
	return out
}

// add copies an element. The last one with a key counts: a listing can have one twice.
func (s *elements) add(e *nft.Element) {
	if _, found := s.single[string(e.Key)]; !found && s.pack(e) {
		return
	}
	if data := s.packedData(e.Key); data != nil {
		clear(data)
		to, _ := splitIndex(e.Key)
		s.packed[string(to)].count--
		s.count--
	}
	own := *e
	own.Key, own.End, own.Data = slices.Clone(e.Key), slices.Clone(e.End), slices.Clone(e.Data)
	s.single[string(e.Key)] = &own
}

// pack packs an element that has nothing but its data. Other programs can add any index: one that would leave a
// large gap stays single.
func (s *elements) pack(e *nft.Element) bool {
	if s.packed == nil || len(e.Key) < indexBytes || isZero(e.Data) ||
		e.End != nil || e.IntervalEnd || e.CatchAll || e.Comment != "" || e.Verdict != (nft.Verdict{}) {
		return false
	}
	if s.width == 0 {
		s.width = len(e.Data)
	}
	to, index := splitIndex(e.Key)
	of := s.packed[string(to)]
	if of == nil {
		of = &series{}
	}
	if index >= 4*of.count+16 || len(e.Data) != s.width {
		return false
	}
	at := index * s.width
	if missing := at + s.width - len(of.data); missing > 0 {
		of.data = append(of.data, make([]byte, missing)...)
	}
	if isZero(of.data[at : at+s.width]) {
		of.count++
		s.count++
	}
	copy(of.data[at:], e.Data)
	s.packed[string(to)] = of
	return true
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// data returns that of the element with a key and an index; nil: there is none.
func (s *elements) data(k []byte) []byte {
	if s == nil {
		return nil
	}
	if e := s.single[string(k)]; e != nil {
		return e.Data
	}
	return s.packedData(k)
}

// packedData returns that of a packed element; nil: there is none.
func (s *elements) packedData(k []byte) []byte {
	if s.packed == nil || len(k) < indexBytes {
		return nil
	}
	to, index := splitIndex(k)
	of := s.packed[string(to)]
	if of == nil || index >= len(of.data)/s.width {
		return nil
	}
	if data := of.data[index*s.width:][:s.width:s.width]; !isZero(data) {
		return data
	}
	return nil
}

// packedAt returns how many elements are packed with a key but for the index.
func (s *elements) packedAt(to []byte) int {
	if s == nil || s.packed[string(to)] == nil {
		return 0
	}
	return s.packed[string(to)].count
}

// find returns the element with a key; nil: there is none.
func (s *elements) find(k []byte) *nft.Element {
	if s == nil {
		return nil
	}
	if e := s.single[string(k)]; e != nil {
		return e
	}
	if data := s.packedData(k); data != nil {
		return &nft.Element{Key: slices.Clone(k), Data: data}
	}
	return nil
}

func (s *elements) len() int {
	if s == nil {
		return 0
	}
	return len(s.single) + s.count
}

// all yields the elements, in any order.
func (s *elements) all() iter.Seq[*nft.Element] {
	return func(yield func(*nft.Element) bool) {
		if s == nil {
			return
		}
		for _, e := range s.single {
			if !yield(e) {
				return
			}
		}
		for to, of := range s.packed {
			for index := range len(of.data) / s.width {
				if e := s.find(indexed([]byte(to), index)); e != nil && !yield(e) {
					return
				}
			}
		}
	}
}

// equal reports whether two listings of a set have the same elements.
func (s *elements) equal(other *elements) bool {
	return maps.EqualFunc(s.single, other.single, isElement) &&
		maps.EqualFunc(s.packed, other.packed, func(a, b *series) bool { return bytes.Equal(a.data, b.data) })
}

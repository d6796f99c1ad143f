package nlattr

import (
	"bytes"
	"encoding/binary"
	"iter"
)

// Flags of an attribute's type. Readers get types without them.
const (
	// Nested: the value consists of attributes.
	Nested = 1 << 15
	// NetByteOrder: the value is a number in network byte order.
	NetByteOrder = 1 << 14

	typeMask = NetByteOrder - 1
)

const (
	headerLength = 4 // of an attribute
	alignment    = 4
)

// Append appends an attribute.
func Append(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(headerLength+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%alignment != 0 {
		b = append(b, 0)
	}
	return b
}

// AppendText appends a zero-terminated string.
func AppendText(b []byte, kind uint16, text string) []byte {
	return Append(b, kind, append([]byte(text), 0))
}

// AppendUint16 appends a number in network byte order. It does not set NetByteOrder.
func AppendUint16(b []byte, kind, n uint16) []byte {
	return Append(b, kind, binary.BigEndian.AppendUint16(nil, n))
}

// AppendUint32 appends a number in network byte order. It does not set NetByteOrder.
func AppendUint32(b []byte, kind uint16, n uint32) []byte {
	return Append(b, kind, binary.BigEndian.AppendUint32(nil, n))
}

// Each calls f with type and value of each attribute until f returns false. It returns false
// if f did, or if b is truncated.
func Each(b []byte, f func(kind uint16, value []byte) bool) bool {
	for len(b) >= headerLength {
		size := int(binary.NativeEndian.Uint16(b))
		if size < headerLength || size > len(b) || !f(binary.NativeEndian.Uint16(b[2:])&typeMask, b[headerLength:size]) {
			return false
		}
		b = b[min((size+alignment-1)&^(alignment-1), len(b)):]
	}
	return true
}

// All yields the attributes in b up to a truncated one.
func All(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) { Each(b, yield) }
}

// Text returns a zero-terminated string.
func Text(value []byte) string {
	text, _, _ := bytes.Cut(value, []byte{0})
	return string(text)
}

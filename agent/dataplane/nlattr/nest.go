package nlattr

import "encoding/binary"

// Open begins an attribute that consists of attributes, which Close ends. It returns where it
// begins.
func Open(b []byte, kind uint16) (appended []byte, at int) {
	at = len(b)
	b = binary.NativeEndian.AppendUint16(b, 0)
	return binary.NativeEndian.AppendUint16(b, kind|Nested), at
}

// Close sets the length of an attribute: it extends to the end of b.
func Close(b []byte, at int) {
	binary.NativeEndian.PutUint16(b[at:], uint16(len(b)-at)) //nolint:gosec // the caller bounds it
}

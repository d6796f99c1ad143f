package nlattr

import (
	"fmt"
	"slices"
	"testing"
)

func TestAttributes(t *testing.T) {
	b := AppendText(nil, 1, "ab")
	b = AppendUint16(b, 2|NetByteOrder, 80)
	b = Append(b, 3|Nested, AppendUint32(nil, 1, 7))
	if len(b)%4 != 0 {
		t.Fatalf("%d bytes are not aligned", len(b))
	}
	read := func(b []byte) (out []string) {
		for kind, value := range All(b) {
			out = append(out, fmt.Sprintf("%d:%x", kind, value))
		}
		return out
	}
	if got, want := read(b), []string{"1:616200", "2:0050", "3:0800010000000007"}; !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
	all := func(uint16, []byte) bool { return true }
	if !Each(b, all) || Each(b[:len(b)-4], all) {
		t.Error("it cannot distinguish what is whole from what is cut off")
	}
	if got := read(b[:len(b)-4]); len(got) != 2 {
		t.Errorf("of cut off attributes it reads %q", got)
	}
	if got := Text([]byte("ab\x00c")); got != "ab" {
		t.Errorf("text %q", got)
	}
}

package nft

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDescribe names what the kernel lacks.
func TestDescribe(t *testing.T) {
	c := ownNamespace(t)
	for _, tt := range []struct {
		want string
		add  func(b *Batch)
	}{
		{"expression nosuch in a rule of chain new", func(b *Batch) {
			b.AddChain(table, "new", nil)
			b.AddRule(table, "new", "", Meta(unix.NFT_META_L4PROTO, 0), expr("nosuch", nil), Give(Drop()))
		}},
		{"what chain base needs", func(b *Batch) {
			b.AddChain(table, "base", &Hook{Type: "nosuch", Number: unix.NF_INET_FORWARD})
		}},
		{"what set many needs", func(b *Batch) {
			b.AddSet(table, &Set{Name: "many", Key: slices.Repeat([]Type{IPv4Address}, 17)})
		}},
	} {
		var b Batch
		b.AddTable(table, "", false)
		tt.add(&b)
		var rejected *RejectedError
		if err := c.Commit(&b, 0); !errors.As(err, &rejected) || b.Describe(rejected) != tt.want {
			t.Errorf("%v: %q, want %q", err, b.Describe(rejected), tt.want)
		}
	}
	if got := (&Batch{}).Describe(&RejectedError{Message: -1}); got != "batches" {
		t.Errorf("no message in particular: %q", got)
	}
}

// TestCutShort: an answer that is not whole is an error, and not one of nothing.
func TestCutShort(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &Conn{fd: pair[0], sequence: 1, buffer: make([]byte, 64)}
	defer func() { _ = errors.Join(c.Close(), unix.Close(pair[1])) }()
	answer := func(b []byte) error {
		if _, err := unix.Write(pair[1], b); err != nil {
			t.Fatal(err)
		}
		return c.committed(1, 1)
	}
	failure := func(body []byte) []byte {
		b := slices.Concat(appendHeader(nil, unix.NLMSG_ERROR, 0, 1, 0, 0)[:headerLength], body)
		binary.NativeEndian.PutUint32(b, uint32(len(b))) //nolint:gosec // small
		return b
	}
	if err := answer(make([]byte, 100)); !errors.Is(err, errCutShort) {
		t.Errorf("more than fits: %v", err)
	}
	if err := answer(failure([]byte{1, 0})); !errors.Is(err, unix.EBADMSG) {
		t.Errorf("an error without its number: %v", err)
	}
	if err := failureOf(message{body: []byte{0}}); !errors.Is(err, errCutShort) {
		t.Errorf("the end of a listing: %v", err)
	}
	busy := -int32(unix.EBUSY)
	if err := failureOf(message{body: binary.NativeEndian.AppendUint32(nil, uint32(busy))}); !errors.Is(err, unix.EBUSY) { //nolint:gosec // as the kernel has it
		t.Errorf("a listing that fails: %v", err)
	}
}

package nftablesmodel_test

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nftablesmodel"
)

// pack writes a batch for the fuzzer, and unpack reads one: kind, flags and family, the length of the
// attributes, and these.
func pack(b *nft.Batch) []byte {
	var out []byte
	for m := range b.Messages() {
		out = append(out, byte(m.Kind), byte(m.Flags>>8), m.Family)
		out = append(binary.BigEndian.AppendUint16(out, uint16(len(m.Attributes))), m.Attributes...) //nolint:gosec // small
	}
	return out
}

func unpack(data []byte) *nft.Batch {
	const header = 5
	b := &nft.Batch{}
	for len(data) >= header {
		size := min(int(binary.BigEndian.Uint16(data[3:])), len(data)-header)
		b.Append(nft.Message{Kind: uint16(data[0]), Flags: uint16(data[1]) << 8, Family: data[2], Attributes: data[header : header+size]})
		data = data[header+size:]
	}
	return b
}

// fixture has a table with a set, a chain and a rule of each kind.
func fixture(t testing.TB) *nftablesmodel.Kernel {
	t.Helper()
	k := nftablesmodel.New(netip.MustParseAddr("192.0.2.1"))
	of := randomTables[0]
	var b nft.Batch
	b.AddTable(of, "", false)
	for _, s := range randomSets[:5] {
		b.AddSet(of, s)
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		b.AddChain(of, name, nil)
	}
	b.AddChain(of, "e", randomHooks[3])
	b.AddChain(of, "f", randomHooks[4])
	b.AddRule(of, "e", "", nft.Network(16, 4, 0), nft.Transport(2, 2, 1), nft.Follow("verdicts", 0))
	b.AddRule(of, "a", "", nft.Network(16, 4, 0), nft.Random(2, 1), nft.Get("data", 0, 0), nft.DNAT(unix.NFPROTO_IPV4, 0, 1))
	b.AddRule(of, "f", "", nft.Network(12, 4, 0), nft.Transport(2, 2, 2), nft.Network(16, 4, 1), nft.Learn("learned", 0, 1, 1e9))
	b.AddElement(of, "verdicts", &nft.Element{Key: []byte{10, 0, 0, 1, 0, 80, 0, 0}, Verdict: nft.Goto("a")})
	for i := range uint32(2) {
		b.AddElement(of, "data", &nft.Element{Key: append([]byte{10, 0, 0, 1}, nft.HostNumber(i)...), Data: []byte{10, 1, 0, byte(i), 0, 80, 0, 0}})
	}
	if err := k.Commit(&b, 0); err != nil {
		t.Fatal(err)
	}
	return k
}

// FuzzBatch: a rejected batch changes nothing, and packets can be traced after any other.
func FuzzBatch(f *testing.F) {
	g := generator{rand.New(rand.NewPCG(1, 1))} //nolint:gosec // a test
	for range 40 {
		f.Add(pack(g.batch()))
	}
	packets := []kernelmodel.Packet{
		{Protocol: "tcp", In: "eth0", Source: netip.MustParseAddr("203.0.113.1"), Destination: netip.MustParseAddrPort("10.0.0.1:80")},
		{Protocol: "udp", Source: netip.MustParseAddr("192.0.2.1"), Destination: netip.MustParseAddrPort("192.0.2.1:80")},
		{Protocol: "tcp", In: "eth0", Source: netip.MustParseAddr("2001:db8::1"), Destination: netip.MustParseAddrPort("[2001:db8::2]:80"), State: "INVALID"},
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		k := fixture(t)
		before, generation := listing(t, k, randomTables[0]), must(k.Generation())
		if err := k.Commit(unpack(data), 0); err != nil {
			if after := listing(t, k, randomTables[0]); !slices.Equal(before, after) || must(k.Generation()) != generation {
				t.Fatalf("after %v there is\n%q\nnot\n%q", err, after, before)
			}
		}
		for _, p := range packets {
			outcomes, err := k.Trace(p)
			if err != nil {
				continue // what the rules ask for is more than the model follows
			}
			total := 0.0
			for _, o := range outcomes {
				total += o.Share
				k.Remember(o)
			}
			if total < 0.999 || total > 1.001 {
				t.Fatalf("%+v: shares of %f", p, total)
			}
		}
	})
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// TestFuzzedForm: what is packed is unpacked.
func TestFuzzedForm(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(1, 2))} //nolint:gosec // a test
	for range 50 {
		b := g.batch()
		if got, want := describe(unpack(pack(b))), describe(b); got != want {
			t.Fatalf("%s became %s", want, got)
		}
	}
}

package nftables

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// TestListedElements compares the elements of a listing to a map, in random order and with what other programs
// can add: large indexes, keys that come twice, and elements with more than data.
func TestListedElements(t *testing.T) {
	random := rand.New(rand.NewPCG(dataplanetest.Seed(t), 1)) //nolint:gosec // reproducible
	for round := range 200 {
		indexed := round%2 == 0
		got, want := newElements(indexed), map[string]*nft.Element{}
		again := newElements(indexed)
		for range random.IntN(300) {
			e := &nft.Element{Key: make([]byte, 12, 16), Data: []byte{10, byte(random.IntN(3)), 0, byte(random.IntN(2)), 0, byte(random.IntN(2)), 0, 0}}
			e.Key[0] = byte(random.IntN(5)) //nolint:gosec // few
			index := random.IntN(40)
			switch random.IntN(20) {
			case 0:
				index = random.IntN(1 << 32)
			case 1:
				e.Comment = "another program's"
			case 2:
				e.Data = make([]byte, 8)
			case 3:
				e.Data = e.Data[:4]
			}
			e.Key = binary.NativeEndian.AppendUint32(e.Key, uint32(index)) //nolint:gosec // as intended
			got.add(e)
			again.add(e)
			want[string(e.Key)] = e
		}
		if got.len() != len(want) || !got.equal(again) {
			t.Fatalf("round %d: %d elements, want %d", round, got.len(), len(want))
		}
		listed := map[string]bool{}
		for e := range got.all() {
			listed[string(e.Key)] = true
			if w := want[string(e.Key)]; w == nil || !isElement(e, w) {
				t.Fatalf("round %d: %x: %+v, want %+v", round, e.Key, e, w)
			}
		}
		for k, w := range want {
			if e := got.find([]byte(k)); !listed[k] || e == nil || string(e.Key) != k || !isElement(e, w) || !bytes.Equal(got.data([]byte(k)), w.Data) {
				t.Fatalf("round %d: %x: %+v, want %+v", round, k, e, w)
			}
		}
		for index := range 60 {
			for to := range 6 {
				k := binary.NativeEndian.AppendUint32(append(make([]byte, 0, 16), byte(to), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), uint32(index)) //nolint:gosec // few
				if want[string(k)] == nil && (got.find(k) != nil || got.data(k) != nil) {
					t.Fatalf("round %d: %x is found", round, k)
				}
			}
		}
	}
	var none *elements
	for e := range none.all() {
		t.Errorf("none has %+v", e)
	}
	if none.len() != 0 || none.find([]byte("key")) != nil || none.data([]byte("key")) != nil {
		t.Error("none has elements")
	}
}

// TestMemoryOfAListing: what a listing takes by the number of endpoints.
func TestMemoryOfAListing(t *testing.T) {
	const services, endpoints, limit = 1000, 10, 400 // bytes a Service
	r, _, _ := filled(t, services, endpoints)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	set := newElements(true)
	if err := r.conn.Elements(r.config.table(), setEndpoints, set.add); err != nil {
		t.Fatal(err)
	}
	took := heap() - before
	runtime.KeepAlive(r)
	what := fmt.Sprintf("%d endpoints of %d Services: %d bytes", set.len(), services, took)
	if t.Log(what); set.len() != services*endpoints || took > services*limit {
		t.Error(what)
	}
}

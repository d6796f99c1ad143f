package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var table = Table{Family: unix.NFPROTO_IPV4, Name: "test"}

// ownNamespace gives the test a network namespace of its own, which goes with its thread.
func ownNamespace(t testing.TB) *Conn {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func commit(t testing.TB, c *Conn, b *Batch) {
	t.Helper()
	if err := c.Commit(b, 0); err != nil {
		t.Fatal(err)
	}
}

// key is a destination as sets have it.
func key(address string, port uint16, parts ...uint32) []byte {
	b := append([]byte{}, netip.MustParseAddr(address).AsSlice()...)
	b = append(b, unix.IPPROTO_TCP, 0, 0, 0)
	b = append(binary.BigEndian.AppendUint16(b, port), 0, 0)
	for _, p := range parts {
		b = binary.NativeEndian.AppendUint32(b, p)
	}
	return b
}

func endpoint(address string, port uint16) []byte {
	b := append([]byte{}, netip.MustParseAddr(address).AsSlice()...)
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}

var (
	destination = []Type{IPv4Address, Protocol, Port}
	services    = Set{Name: "service-ips", Key: destination, Verdicts: true}
	endpoints   = Set{Name: "endpoints", Key: append(slices.Clone(destination), Number), Data: []Type{IPv4Address, Port}}
	sources     = Set{Name: "sources", Key: append(slices.Clone(destination), IPv4Address)}
	affinity    = Set{Name: "affinity", Key: append([]Type{IPv4Address}, destination...), Data: []Type{IPv4Address, Port}, Dynamic: true, Size: 1 << 20}
	sets        = []*Set{&services, &endpoints, &sources, &affinity}
)

// load are the expressions that load a destination to registers from at on.
func load(at Register) []Expr {
	return []Expr{Network(16, 4, at), Meta(unix.NFT_META_L4PROTO, at+1), Transport(2, 2, at+2)}
}

// rules are one of each kind.
func rules() map[string][]Expr {
	return map[string][]Expr{
		"pick":     append(load(0), Random(1, 3), Get("endpoints", 0, 0), DNAT(unix.NFPROTO_IPV4, 0, 1)),
		"dispatch": append(load(0), Follow("service-ips", 0)),
		"affine":   append([]Expr{Network(12, 4, 0)}, append(load(1), Get("affinity", 0, 0), DNAT(unix.NFPROTO_IPV4, 0, 1))...),
		"limited":  append(load(0), Network(12, 4, 3), NotIn("sources", 0), Give(Drop())),
		"mark": {
			Network(12, 2, 0), NotEqual(0, []byte{10, 244}), Meta(unix.NFT_META_MARK, 0),
			Bits(0, HostNumber(0xffffbfff), HostNumber(0x4000)), SetMeta(unix.NFT_META_MARK, 0), Give(Goto("pick")),
		},
		"local": {AddressType(unix.NFTA_FIB_F_SADDR, 0), Equal(0, HostNumber(unix.RTN_LOCAL)), Give(Jump("pick"))},
		"learn": {
			Conntrack(unix.NFT_CT_STATUS, 0), Bits(0, HostNumber(0x20), HostNumber(0)), NotEqual(0, HostNumber(0)),
			Network(12, 4, 0), Original(unix.NFT_CT_DST_IP, 1), Meta(unix.NFT_META_L4PROTO, 2), Original(unix.NFT_CT_PROTO_DST, 3),
			Network(16, 4, 4), Transport(2, 2, 5), Learn("affinity", 0, 4, 3*time.Hour),
		},
		"masquerade": {Masquerade(true)},
		"reset":      {Meta(unix.NFT_META_L4PROTO, 0), Equal(0, []byte{unix.IPPROTO_TCP}), RejectReset()},
		"reject":     {RejectUnreachable(unix.NFPROTO_IPV4)},
	}
}

// build adds a table with sets, chains and rules of each kind.
func build(t testing.TB, c *Conn) {
	t.Helper()
	var b Batch
	b.AddTable(table, "for a test", false)
	for _, s := range sets {
		b.AddSet(table, s)
	}
	all := rules()
	for name := range all {
		b.AddChain(table, name, nil)
	}
	b.AddChain(table, "nat-prerouting", &Hook{Type: "nat", Number: unix.NF_INET_PRE_ROUTING, Priority: -100})
	for _, name := range []string{"pick", "dispatch", "affine", "limited", "mark", "local", "learn", "reset", "reject"} {
		b.AddRule(table, name, "of "+name, all[name]...)
	}
	commit(t, c, &b)
}

func list(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "table", "ip", "test").CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	return string(out)
}

// TestReadableByNft lists with nft what is written.
func TestReadableByNft(t *testing.T) {
	c := ownNamespace(t)
	build(t, c)
	var b Batch
	b.AddElement(table, "service-ips", &Element{Key: key("10.96.0.1", 80), Verdict: Goto("pick"), Comment: "default/web:http"})
	b.AddElement(table, "service-ips", &Element{Key: key("10.96.0.2", 80), Verdict: Drop()})
	b.AddElement(table, "endpoints", &Element{Key: key("10.96.0.1", 80, 0), Data: endpoint("10.244.0.2", 8080)})
	b.AddElement(table, "sources", &Element{Key: append(key("203.0.113.1", 80), 198, 51, 100, 7)})
	if b.Len() != 3 {
		t.Errorf("%d messages; elements of a set share one", b.Len())
	}
	commit(t, c, &b)
	text := list(t)
	for _, want := range []string{
		`comment "for a test"`,
		`10.96.0.1 . tcp . 80 comment "default/web:http" : goto pick`,
		`10.96.0.2 . tcp . 80 : drop`,
		`10.96.0.1 . tcp . 80 . 0x00000000 : 10.244.0.2 . 8080`,
		`203.0.113.1 . tcp . 80 . 198.51.100.7`,
		`dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 1 map @endpoints comment "of pick"`,
		`ip daddr . meta l4proto . th dport vmap @service-ips`,
		`ip saddr != 10.244.0.0/16 meta mark set meta mark | 0x00004000 goto pick`,
		`fib saddr type local jump pick`,
		`reject with tcp reset`,
		`update @affinity { ip saddr . ct original ip daddr . meta l4proto . ct original proto-dst timeout 3h : ip daddr . th dport }`,
		`type nat hook prerouting priority dstnat; policy accept;`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("nft does not list %q:\n%s", want, text)
		}
	}
}

// TestList reads back what is written.
func TestList(t *testing.T) {
	c := ownNamespace(t)
	if found, _, err := c.HasTable(table); found || err != nil {
		t.Fatalf("before: %v, %v", found, err)
	}
	before, err := c.Generation()
	if err != nil {
		t.Fatal(err)
	}
	build(t, c)
	if found, of, err := c.HasTable(table); !found || of != (Ownership{}) || err != nil {
		t.Errorf("found %v, %+v, %v", found, of, err)
	}
	if after, err := c.Generation(); err != nil || after == before {
		t.Errorf("generation %d, before %d, %v", after, before, err)
	}
	listed, err := c.Sets(table)
	if err != nil || len(listed) != len(sets) {
		t.Fatalf("%d sets, %v", len(listed), err)
	}
	for _, s := range sets {
		if i := slices.IndexFunc(listed, func(l ListedSet) bool { return l.Name == s.Name }); i < 0 || !listed[i].Is(s) {
			t.Errorf("set %s is listed as %+v", s.Name, listed)
		}
	}
	other := services
	other.Key = endpoints.Key
	if i := slices.IndexFunc(listed, func(l ListedSet) bool { return l.Name == other.Name }); listed[i].Is(&other) {
		t.Error("a set is taken for one with another key")
	}
	chains, err := c.Chains(table)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(chains, func(c Chain) bool { return c.Name == "nat-prerouting" })
	if h := chains[i].Hook; len(chains) != len(rules())+1 || h == nil || *h != (Hook{Type: "nat", Number: unix.NF_INET_PRE_ROUTING, Priority: -100}) {
		t.Errorf("chains %+v", chains)
	}
	found, err := c.Rules(table)
	if err != nil || len(found) != 9 {
		t.Fatalf("%d rules, %v", len(found), err)
	}
	for _, r := range found {
		for name, exprs := range rules() {
			if same := Same(exprs, r.Exprs); same != (name == r.Chain) {
				t.Errorf("the rule of chain %s is the one written for %s: %v", r.Chain, name, same)
			}
		}
		if r.Comment != "of "+r.Chain {
			t.Errorf("comment %q in chain %s", r.Comment, r.Chain)
		}
	}
}

// TestElements replaces elements in one batch, many in several messages.
func TestElements(t *testing.T) {
	c := ownNamespace(t)
	build(t, c)
	const count = 5000
	var b Batch
	address := func(i int) string { return fmt.Sprintf("10.%d.%d.%d", 100+i>>16, i>>8&255, i&255) }
	for i := range count {
		b.AddElement(table, "endpoints", &Element{Key: key(address(i), 80, 0), Data: endpoint("10.244.0.1", 8080)})
		b.AddElement(table, "endpoints", &Element{Key: key(address(i), 80, 1), Data: endpoint("10.244.0.2", 8080), Comment: strings.Repeat("x", 300)})
	}
	if b.Len() < 2 || b.Len() > 100 {
		t.Errorf("%d messages for %d elements", b.Len(), 2*count)
	}
	commit(t, c, &b)
	read := func() map[string]string {
		out := map[string]string{}
		if err := c.Elements(table, "endpoints", func(e *Element) { out[string(e.Key)] = string(e.Data) + e.Comment }); err != nil {
			t.Fatal(err)
		}
		return out
	}
	settled := func() {
		t.Helper()
		for i := range 2 * count { // a listing may lack some
			if e, err := c.Find(table, "endpoints", key(address(i/2), 80, uint32(i%2))); err != nil || e == nil { //nolint:gosec // few
				t.Fatalf("element %d: %v, %v", i, e, err)
			}
		}
		if e, err := c.Find(table, "endpoints", key(address(0), 80, 2)); e != nil || err != nil {
			t.Errorf("an element that is not there: %v, %v", e, err)
		}
		for deadline := time.Now().Add(10 * time.Second); len(read()) != 2*count && time.Now().Before(deadline); {
			runtime.Gosched()
		}
	}
	settled()
	if got := read(); len(got) != 2*count || got[string(key(address(7), 80, 1))] != string(endpoint("10.244.0.2", 8080))+strings.Repeat("x", maxComment) {
		t.Fatalf("%d elements", len(got))
	}
	b.Reset()
	e := Element{Key: key(address(7), 80, 1)}
	b.DeleteElement(table, "endpoints", &e)
	e.Data = endpoint("10.244.0.3", 8080)
	b.AddElement(table, "endpoints", &e)
	commit(t, c, &b)
	settled()
	if got := read(); got[string(e.Key)] != string(e.Data) {
		t.Errorf("%d elements, the replaced one is %q", len(got), got[string(e.Key)])
	}
}

// TestRejected: the error names the message, and nothing of the batch is done.
func TestRejected(t *testing.T) {
	c := ownNamespace(t)
	build(t, c)
	var b Batch
	b.AddElement(table, "endpoints", &Element{Key: key("10.96.0.1", 80, 0), Data: endpoint("10.244.0.1", 8080)})
	b.AddElement(table, "service-ips", &Element{Key: key("10.96.0.1", 80), Verdict: Goto("no-such-chain")})
	b.AddElement(table, "endpoints", &Element{Key: key("10.96.0.2", 80, 0), Data: endpoint("10.244.0.1", 8080)})
	var rejected *RejectedError
	if err := c.Commit(&b, 0); !errors.As(err, &rejected) || rejected.Message != 1 || !errors.Is(err, unix.ENOENT) {
		t.Errorf("error %v", err)
	}
	if err := c.Elements(table, "endpoints", func(e *Element) { t.Errorf("there is %q", e.Key) }); err != nil {
		t.Error(err)
	}
	generation, err := c.Generation()
	if err != nil {
		t.Fatal(err)
	}
	b.Reset()
	b.AddElement(table, "endpoints", &Element{Key: key("10.96.0.1", 80, 0), Data: endpoint("10.244.0.1", 8080)})
	if err := c.Commit(&b, generation+1); !errors.Is(err, ErrChanged) {
		t.Errorf("for another generation: %v", err)
	}
	if err := c.Commit(&b, generation); err != nil {
		t.Errorf("for this generation: %v", err)
	}
}

// TestOwned: no other socket changes an owned table, and it outlives its socket.
func TestOwned(t *testing.T) {
	c := ownNamespace(t)
	var b Batch
	b.AddTable(table, "", true)
	commit(t, c, &b)
	out, err := exec.Command("nft", "delete", "table", "ip", "test").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "Operation not permitted") {
		t.Errorf("another program deletes the table: %v %s", err, out)
	}
	has := func(want Ownership) {
		t.Helper()
		if found, of, err := c.HasTable(table); !found || of != want || err != nil {
			t.Errorf("found %v, %+v, want %+v, %v", found, of, want, err)
		}
	}
	has(Ownership{Port: c.Port(), Persists: true})
	next, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Commit(&b, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("another socket owns it: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	*c = *next
	has(Ownership{Persists: true})
	b.AddChain(table, "new", nil)
	commit(t, c, &b)
	has(Ownership{Port: c.Port(), Persists: true})
}

func BenchmarkReplaceElement(b *testing.B) {
	c := ownNamespace(b)
	build(b, c)
	var batch Batch
	for i := range 50_000 {
		batch.AddElement(table, "endpoints", &Element{Key: key("10.96.0.1", 80, uint32(i)), Data: endpoint("10.244.0.1", 8080)}) //nolint:gosec // few
	}
	commit(b, c, &batch)
	e := Element{Key: key("10.96.0.1", 80, 7)}
	for i := 0; b.Loop(); i++ {
		batch.Reset()
		batch.DeleteElement(table, "endpoints", &e)
		e.Data = endpoint("10.244.0.2", uint16(1+i%2)) //nolint:gosec // few
		batch.AddElement(table, "endpoints", &e)
		commit(b, c, &batch)
	}
}

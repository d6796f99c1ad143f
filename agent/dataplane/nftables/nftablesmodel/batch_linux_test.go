package nftablesmodel_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nftablesmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// ownNamespace opens a socket in a network namespace of its own, which goes with its thread.
func ownNamespace(t *testing.T) *nft.Conn {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	c, err := nft.Open()
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

// generator makes random batches, many of which the kernel rejects.
type generator struct{ *rand.Rand }

var (
	randomTables = []nft.Table{{Family: unix.NFPROTO_IPV4, Name: "one"}, {Family: unix.NFPROTO_IPV4, Name: "two"}}
	randomSets   = []*nft.Set{
		{Name: "verdicts", Key: []nft.Type{nft.IPv4Address, nft.Port}, Verdicts: true},
		{Name: "data", Key: []nft.Type{nft.IPv4Address, nft.Number}, Data: []nft.Type{nft.IPv4Address, nft.Port}},
		{Name: "pairs", Key: []nft.Type{nft.Port, nft.IPv4Address}},
		{Name: "learned", Key: []nft.Type{nft.IPv4Address}, Data: []nft.Type{nft.IPv4Address, nft.Port}, Dynamic: true, Size: 3},
		{Name: "few", Key: []nft.Type{nft.IPv4Address}, Size: 2},
		{Name: "few", Key: []nft.Type{nft.Port}, Size: 2}, // the same name
	}
	randomHooks = []*nft.Hook{
		nil, nil, nil,
		{Type: "nat", Number: unix.NF_INET_PRE_ROUTING, Priority: -100}, {Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: 100},
		{Type: "filter", Number: unix.NF_INET_FORWARD}, {Type: "nat", Number: unix.NF_INET_FORWARD}, {Type: "nat", Number: unix.NF_INET_LOCAL_OUT, Priority: -200},
		{Type: "other", Number: unix.NF_INET_LOCAL_IN},
	}
)

func (g generator) table() nft.Table {
	if g.IntN(10) == 0 {
		return randomTables[1]
	}
	return randomTables[0]
}

func (g generator) chain() string { return string(rune('a' + g.IntN(6))) }

func (g generator) verdict() nft.Verdict {
	switch g.IntN(4) {
	case 0:
		return nft.Drop()
	case 1:
		return nft.Jump(g.chain())
	}
	return nft.Goto(g.chain())
}

// rule has expressions that fit, or do not.
func (g generator) rule() []nft.Expr {
	all := [][]nft.Expr{
		{nft.Network(16, 4, 0), nft.Transport(2, 2, 1), nft.Follow("verdicts", 0)},
		{nft.Network(16, 4, 0), nft.Random(1, 3), nft.Get("data", 0, 0), nft.DNAT(unix.NFPROTO_IPV4, 0, 1)},
		{nft.Network(16, 4, 0), nft.Random(3, 1), nft.Get("data", 0, 0), nft.DNAT(unix.NFPROTO_IPV4, 0, 1)},
		{nft.Transport(2, 2, 0), nft.Network(12, 4, 1), nft.NotIn("pairs", 0), nft.Give(g.verdict())},
		{nft.Network(12, 4, 0), nft.In("few", 0), nft.Give(g.verdict())},
		{nft.Network(12, 4, 0), nft.Transport(2, 2, 2), nft.Network(16, 4, 1), nft.Learn("learned", 0, 1, time.Minute)},
		{nft.Network(12, 4, 0), nft.Learn("few", 0, 0, time.Minute)},
		{nft.Network(12, 4, 0), nft.In("data", 0)},
		{nft.Network(12, 4, 0), nft.Get("verdicts", 0, 0)},
		{nft.Network(12, 4, 0), nft.Follow("data", 0)},
		{nft.Meta(unix.NFT_META_MARK, 3), nft.Bits(3, nft.HostNumber(1), nft.HostNumber(2)), nft.SetMeta(unix.NFT_META_MARK, 3), nft.Masquerade(true)},
		{nft.Meta(unix.NFT_META_L4PROTO, 0), nft.Equal(0, []byte{6}), nft.RejectReset()},
		{nft.Conntrack(unix.NFT_CT_STATE, 15), nft.NotEqual(15, nft.HostNumber(8)), nft.RejectUnreachable(unix.NFPROTO_IPV4)},
		{nft.Original(unix.NFT_CT_DST_IP, 4), nft.Original(unix.NFT_CT_PROTO_DST, 5), nft.AddressType(unix.NFTA_FIB_F_SADDR, 6), nft.Give(g.verdict())},
		{nft.Network(12, 8, 15)}, {nft.Equal(2, []byte{1})}, {nft.Random(0, 0)}, {nft.DNAT(unix.NFPROTO_IPV6, 0, 1)},
		{nft.Give(g.verdict())}, {nft.Give(g.verdict())},
	}
	return all[g.IntN(len(all))]
}

// element is one of a few, which fit the set or do not.
func (g generator) element(set string) *nft.Element {
	number := func() byte { return byte(g.IntN(4)) }
	address := []byte{10, 0, 0, number()}
	e := &nft.Element{}
	switch set {
	case "verdicts":
		e.Key, e.Verdict = slices.Concat(address, []byte{0, 80, 0, 0}), g.verdict()
	case "data":
		e.Key, e.Data = slices.Concat(address, nft.HostNumber(uint32(number()))), []byte{10, 1, 0, number(), 0, 80, 0, 0}
	case "pairs":
		e.Key = slices.Concat([]byte{0, 80, 0, 0}, address)
	case "learned":
		e.Key, e.Data = address, []byte{10, 1, 0, number(), 0, 80, 0, 0}
	default:
		e.Key = address
	}
	switch g.IntN(24) {
	case 0:
		e.Key = e.Key[:2]
	case 1:
		e.Data = address
	case 2:
		e.Data, e.Verdict = nil, nft.Verdict{}
	}
	return e
}

// deletion is a message that the data plane does not send.
func deletion(t nft.Table, kind, attribute uint16, name string) nft.Message {
	attributes := nlattr.AppendText(nil, unix.NFTA_TABLE_NAME, t.Name)
	return nft.Message{Kind: kind, Family: t.Family, Attributes: nlattr.AppendText(attributes, attribute, name)}
}

// exclusive gives the last message of a batch another flag.
func exclusive(b *nft.Batch, flag uint16) *nft.Batch {
	out, n := &nft.Batch{}, 0
	for m := range b.Messages() {
		if n++; n == b.Len() && m.Kind%3 == 0 { // one that adds
			m.Flags |= flag
		}
		out.Append(m)
	}
	return out
}

func (g generator) batch() *nft.Batch {
	b := &nft.Batch{}
	if g.IntN(2) == 0 { // most of the rest needs these
		b.AddTable(randomTables[0], "", false)
		b.AddSet(randomTables[0], randomSets[g.IntN(len(randomSets)-1)])
		b.AddChain(randomTables[0], g.chain(), nil)
	}
	for range 1 + g.IntN(4) {
		t := g.table()
		set := randomSets[g.IntN(len(randomSets))]
		switch g.IntN(16) {
		case 0:
			b.AddTable(t, "", false)
		case 1:
			if g.IntN(20) == 0 {
				b.DeleteTable(t)
			}
		case 2, 3:
			b.AddSet(t, set)
		case 4, 5:
			b.AddChain(t, g.chain(), randomHooks[g.IntN(len(randomHooks))])
		case 6:
			b.Append(deletion(t, unix.NFT_MSG_DELCHAIN, unix.NFTA_CHAIN_NAME, g.chain()))
		case 7:
			if g.IntN(3) == 0 {
				b.Append(deletion(t, unix.NFT_MSG_DELSET, unix.NFTA_SET_NAME, set.Name))
			}
		case 8:
			b.FlushChain(t, g.chain())
		case 9, 10, 11:
			b.AddRule(t, g.chain(), "", g.rule()...)
		case 12, 13:
			b.AddElement(t, set.Name, g.element(set.Name))
		case 14:
			b.DeleteElement(t, set.Name, g.element(set.Name))
		case 15:
			if g.IntN(5) == 0 {
				b.Append(deletion(t, unix.NFT_MSG_DELSETELEM, unix.NFTA_SET_ELEM_LIST_SET, set.Name))
			}
		}
		if b.Len() > 0 && g.IntN(12) == 0 {
			b = exclusive(b, []uint16{unix.NLM_F_EXCL, unix.NLM_F_REPLACE}[g.IntN(2)])
		}
	}
	return b
}

// loops are batches of chains that lead to each other, too deep or in a circle.
func loops() []*nft.Batch {
	of := randomTables[1]
	line := func(length int) *nft.Batch {
		b := &nft.Batch{}
		b.AddTable(of, "", false)
		b.AddChain(of, "base", &nft.Hook{Type: "filter", Number: unix.NF_INET_FORWARD})
		name := func(i int) string { return fmt.Sprint("c", i) }
		for i := range length {
			b.AddChain(of, name(i), nil)
		}
		for i := range length - 1 {
			b.AddRule(of, name(i), "", nft.Give([]nft.Verdict{nft.Jump(name(i + 1)), nft.Goto(name(i + 1))}[i%2]))
		}
		b.AddRule(of, "base", "", nft.Give(nft.Jump(name(0))))
		return b
	}
	circle, mapped := line(3), line(3)
	circle.AddRule(of, "c2", "", nft.Give(nft.Goto("c0")))
	mapped.AddSet(of, randomSets[0])
	mapped.AddRule(of, "c2", "", nft.Network(16, 4, 0), nft.Transport(2, 2, 1), nft.Follow("verdicts", 0))
	mapped.AddElement(of, "verdicts", &nft.Element{Key: []byte{10, 0, 0, 1, 0, 80, 0, 0}, Verdict: nft.Drop()})
	mapped.AddElement(of, "verdicts", &nft.Element{Key: []byte{10, 0, 0, 2, 0, 80, 0, 0}, Verdict: nft.Goto("c1")})
	remove := &nft.Batch{}
	remove.DeleteTable(of)
	return []*nft.Batch{line(14), remove, line(15), remove, line(16), line(17), line(18), circle, mapped}
}

// TestBatchesOnRealKernel gives the kernel and the model the same random batches, and compares what
// they reject, and what they have. NODEPROXY_SEED repeats a run.
func TestBatchesOnRealKernel(t *testing.T) {
	conn := ownNamespace(t)
	model := nftablesmodel.New()
	g := generator{rand.New(rand.NewPCG(dataplanetest.Seed(t), 1))} //nolint:gosec // to be repeated
	results := map[string]int{}
	fixed := loops()
	for i := range 1500 {
		b := g.batch()
		if i < len(fixed) {
			b = fixed[i]
		}
		before, generation := generations(t, conn, model)
		real, modeled := conn.Commit(b, 0), model.Commit(b, 0)
		if want, got := rejected(real), rejected(modeled); got != want {
			t.Fatalf("the kernel: %v (%s), the model: %v (%s)\n%s\nafter %v", real, want, modeled, got, describe(b), results)
		}
		results[reason(real)]++
		after, next := generations(t, conn, model)
		if (after != before) != (next != generation) {
			t.Fatalf("the generation changes: %t in the kernel, %t in the model", after != before, next != generation)
		}
		for _, table := range randomTables {
			if k, m := listing(t, conn, table), listing(t, model, table); !slices.Equal(k, m) {
				t.Fatalf("the kernel has\n%q\nthe model\n%q", k, m)
			}
		}
	}
	t.Logf("batches by result: %v", results)
	for _, want := range []unix.Errno{0, unix.ENOENT, unix.EEXIST, unix.EBUSY, unix.EINVAL, unix.EOPNOTSUPP, unix.EMLINK, unix.ENODATA} {
		if name := reason(nil); want == 0 && results[name] < 200 || want != 0 && results[want.Error()] == 0 {
			t.Errorf("too few batches with %v", want)
		}
	}
}

// describe is a line for each message of a batch.
func describe(b *nft.Batch) string {
	out := ""
	for m := range b.Messages() {
		out += fmt.Sprintf("%d %#x %q\n", m.Kind, m.Flags, m.Attributes)
	}
	return out
}

// kernel is what both have.
type kernel interface {
	Commit(b *nft.Batch, generation uint32) error
	Generation() (uint32, error)
	HasTable(t nft.Table) (found bool, of nft.Ownership, err error)
	Chains(t nft.Table) ([]nft.Chain, error)
	Rules(t nft.Table) ([]nft.Rule, error)
	Sets(t nft.Table) ([]nft.ListedSet, error)
	Elements(t nft.Table, set string, yield func(*nft.Element)) error
	Find(t nft.Table, set string, key []byte) (*nft.Element, error)
}

func generations(t *testing.T, of ...kernel) (a, b uint32) {
	t.Helper()
	a, first := of[0].Generation()
	b, second := of[1].Generation()
	if err := errors.Join(first, second); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func rejected(err error) string {
	if err == nil {
		return "accepted"
	}
	if r, ok := errors.AsType[*nft.RejectedError](err); ok {
		return fmt.Sprintf("message %d: %v", r.Message, r.Err)
	}
	return err.Error()
}

func reason(err error) string {
	if r, ok := errors.AsType[*nft.RejectedError](err); ok {
		return r.Err.Error()
	}
	return rejected(err)
}

// listing is a line for everything in a table.
func listing(t testing.TB, k kernel, of nft.Table) []string {
	t.Helper()
	var out []string
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	found, ownership, err := k.HasTable(of)
	check(err)
	out = append(out, fmt.Sprint("table ", found, ownership.Port != 0, ownership.Persists))
	chains, err := k.Chains(of)
	check(err)
	for _, c := range chains {
		hook := "none"
		if c.Hook != nil {
			hook = fmt.Sprint(*c.Hook)
		}
		out = append(out, "chain "+c.Name+" "+hook)
	}
	rules, err := k.Rules(of)
	check(err)
	for i, r := range rules {
		out = append(out, fmt.Sprintf("rule %d of %s: %d expressions", i, r.Chain, len(r.Exprs)))
	}
	sets, err := k.Sets(of)
	check(err)
	for _, s := range sets {
		s.DataLength = 0 // the kernel lists one for verdicts
		out = append(out, fmt.Sprintf("set %+v", s))
		var keys [][]byte
		check(k.Elements(of, s.Name, func(e *nft.Element) {
			out = append(out, fmt.Sprintf("element of %s: %x: %x %v", s.Name, e.Key, e.Data, e.Verdict))
			keys = append(keys, slices.Clone(e.Key))
		}))
		for _, key := range keys {
			same, err := k.Find(of, s.Name, key)
			check(err)
			if same == nil || !slices.Equal(same.Key, key) {
				t.Fatalf("%x of %s is not found", key, s.Name)
			}
		}
	}
	slices.Sort(out)
	return out
}

package nft

import (
	"encoding/binary"
	"reflect"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// datagram is a message with attributes.
func datagram(kind int, family byte, attributes []byte) []byte {
	b := append(appendHeader(nil, kind, 0, 1, family, 0), attributes...)
	b[0], b[1] = byte(len(b)), byte(len(b)>>8)
	return b
}

func event(kind int, family byte, name string) []byte {
	return datagram(unix.NFNL_SUBSYS_NFTABLES<<8|kind, family, attributes(nil).text(unix.NFTA_TABLE_NAME, name))
}

func generation(n uint32, pid uint32, program string) []byte {
	return datagram(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN, 0,
		attributes(nil).number(unix.NFTA_GEN_ID, n).number(unix.NFTA_GEN_PROC_PID, pid).text(unix.NFTA_GEN_PROC_NAME, program))
}

func TestEvents(t *testing.T) {
	e := Events{Family: table.Family, Touches: table.Of}
	read := func(parts ...[]byte) []Commit { return slices.Collect(e.Read(slices.Concat(parts...))) }
	for name, c := range map[string]struct {
		datagram []byte
		want     []Commit
	}{
		"added":            {slices.Concat(event(unix.NFT_MSG_NEWSETELEM, table.Family, "test"), generation(7, 12, "nft")), []Commit{{Generation: 7, By: "nft, PID 12"}}},
		"removed":          {slices.Concat(event(unix.NFT_MSG_DELSETELEM, table.Family, "test"), event(unix.NFT_MSG_NEWSETELEM, table.Family, "test"), generation(8, 0, "")), []Commit{{Generation: 8, Removed: true}}},
		"another table":    {slices.Concat(event(unix.NFT_MSG_DELTABLE, table.Family, "other"), generation(9, 12, "nft")), nil},
		"another family":   {slices.Concat(event(unix.NFT_MSG_DELTABLE, unix.NFPROTO_IPV6, "test"), generation(9, 12, "nft")), nil},
		"nothing":          {generation(9, 12, "nft"), nil},
		"cut off":          {event(unix.NFT_MSG_DELTABLE, table.Family, "test")[:18], nil},
		"a length of zero": {make([]byte, 40), nil},
	} {
		if got := read(c.datagram); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	if first, second := read(event(unix.NFT_MSG_DELTABLE, table.Family, "test")), read(generation(10, 1, "a")); len(first) != 0 || len(second) != 1 {
		t.Errorf("a batch in two datagrams: %+v, then %+v", first, second)
	}
}

// TestDetailedEvents: what has changed is known, up to a bound; batches of some sockets are not followed.
func TestDetailedEvents(t *testing.T) {
	const ours = 77
	e := Events{Family: table.Family, Touches: table.Of, Ours: func(port uint32) bool { return port == ours }}
	elements := func(kind int, n int) []byte {
		var b Batch
		for i := range n {
			one := &Element{Key: key("10.0.0.1", 1, uint32(i))} //nolint:gosec // few
			if kind == unix.NFT_MSG_DELSETELEM {
				b.DeleteElement(table, "sources", one)
			} else {
				b.AddElement(table, "sources", one)
			}
		}
		return b.messages
	}
	ids := func(n int) (out []ElementID) {
		for i := range n {
			out = append(out, ElementID{"sources", string(key("10.0.0.1", 1, uint32(i)))}) //nolint:gosec // few
		}
		return out
	}
	from := func(port uint32, datagram []byte) []byte {
		binary.NativeEndian.PutUint32(datagram[12:], port)
		return datagram
	}
	for name, c := range map[string]struct {
		datagram []byte
		want     Changes
	}{
		"nothing":              {nil, Changes{}},
		"elements":             {slices.Concat(elements(unix.NFT_MSG_DELSETELEM, 1), elements(unix.NFT_MSG_NEWSETELEM, 2)), Changes{Elements: append(ids(1), ids(2)...)}},
		"as many as fit":       {elements(unix.NFT_MSG_NEWSETELEM, MaxElements), Changes{Elements: ids(MaxElements)}},
		"more":                 {elements(unix.NFT_MSG_NEWSETELEM, MaxElements+1), Changes{Whole: []string{"sources"}}},
		"a rule":               {event(unix.NFT_MSG_NEWRULE, table.Family, "test"), Changes{Rules: true}},
		"a set and a table":    {slices.Concat(event(unix.NFT_MSG_DELSET, table.Family, "test"), event(unix.NFT_MSG_DELTABLE, table.Family, "test")), Changes{Rules: true, Sets: true}},
		"another table":        {event(unix.NFT_MSG_DELTABLE, table.Family, "other"), Changes{}},
		"our own":              {from(ours, event(unix.NFT_MSG_DELTABLE, table.Family, "test")), Changes{}},
		"ours, then another's": {slices.Concat(from(ours, event(unix.NFT_MSG_DELTABLE, table.Family, "test")), generation(8, 1, ""), event(unix.NFT_MSG_NEWRULE, table.Family, "test")), Changes{Rules: true}},
	} {
		got := slices.Collect(e.Read(slices.Concat(c.datagram, generation(9, 1, "nft"))))
		last := got[len(got)-1]
		if last.Changes == nil || !reflect.DeepEqual(*last.Changes, c.want) || last.Generation != 9 {
			t.Errorf("%s: %+v, changes %+v; want %+v", name, last, last.Changes, c.want)
		}
	}
	var sum Changes
	for range 3 {
		sum.Add(&Changes{Elements: ids(MaxElements / 2)})
	}
	if sum.None() {
		t.Error("a set that has changed is nothing")
	}
	if sum.Add(&Changes{Rules: true}); !reflect.DeepEqual(sum, Changes{Whole: []string{"sources"}, Rules: true}) {
		t.Errorf("the sum: %+v", sum)
	}
	other := ElementID{"endpoints", "a key"}
	sum = Changes{}
	sum.Add(&Changes{Elements: []ElementID{other}})
	if sum.Add(&Changes{Elements: ids(MaxElements)}); !reflect.DeepEqual(sum, Changes{Elements: []ElementID{other}, Whole: []string{"sources"}}) {
		t.Errorf("many of one set: %+v", sum)
	}
	if sum.Add(&Changes{Whole: []string{"endpoints"}, Elements: ids(1)}); !reflect.DeepEqual(sum, Changes{Whole: []string{"sources", "endpoints"}}) {
		t.Errorf("of two sets: %+v", sum)
	}
}

// FuzzMessages parses anything without harm.
func FuzzMessages(f *testing.F) {
	f.Add(slices.Concat(event(unix.NFT_MSG_NEWSETELEM, 2, "test"), generation(7, 12, "nft")))
	var b Batch
	b.AddSet(table, &sources)
	b.AddElement(table, "sources", &Element{Key: key("10.0.0.1", 1, 2), Comment: "x"})
	b.AddElement(table, "service-ips", &Element{Key: key("10.0.0.1", 1), Verdict: Goto("pick")})
	b.AddRule(table, "pick", "x", rules()["learn"]...)
	b.AddChain(table, "base", &Hook{Type: "nat"})
	f.Add(b.messages)
	f.Fuzz(func(_ *testing.T, b []byte) {
		for _, ours := range []func(uint32) bool{nil, func(uint32) bool { return false }} {
			e := Events{Family: table.Family, Touches: table.Of, Ours: ours}
			for range e.Read(b) {
			}
		}
		for m := range messages(b) {
			parseTable(m.body)
			parseChain(m.body)
			_, set := parseSet(m.body)
			set.Is(&sources)
			_, rule := parseRule(m.body)
			Same(rule.Exprs, rule.Exprs)
			Same(rules()["learn"], rule.Exprs)
			parseElements(m.body, func(*Element) {})
			_ = errorOf(m)
			_ = describe(m, 7)
		}
	})
}

// TestSame: what the kernel lists besides does not hide that a rule does something else.
func TestSame(t *testing.T) {
	for _, c := range []struct {
		written, listed Expr
		want            bool
	}{
		{In("s", 0), In("s", 0), true}, {In("s", 0), NotIn("s", 0), false}, {Random(4, 0), Random(4, 0), true}, {Random(4, 0), Random(5, 0), false},
		{DNAT(unix.NFPROTO_IPV4, 0, 1), DNAT(unix.NFPROTO_IPV4, 0, 1), true}, {DNAT(unix.NFPROTO_IPV4, 0, 1), DNAT(unix.NFPROTO_IPV4, 0, 2), false},
	} {
		if got := Same([]Expr{c.written}, []Expr{c.listed}); got != c.want {
			t.Errorf("%x and %x: same %t", c.written, c.listed, got)
		}
	}
}

package kubeproxy

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// listed is a table that the test makes up.
type listed struct {
	chains   []nft.Chain
	rules    []nft.Rule
	sets     []nft.ListedSet
	elements map[string][]nft.Element
	err      error
}

func (l *listed) Chains(nft.Table) ([]nft.Chain, error)   { return l.chains, nil }
func (l *listed) Rules(nft.Table) ([]nft.Rule, error)     { return l.rules, nil }
func (l *listed) Sets(nft.Table) ([]nft.ListedSet, error) { return l.sets, nil }
func (l *listed) Elements(_ nft.Table, name string, yield func(*nft.Element)) error {
	for i := range l.elements[name] {
		yield(&l.elements[name][i])
	}
	return l.err
}

var web = Packet{
	Destination: Destination{netip.MustParseAddrPort("10.96.0.1:80"), v1alpha1.ProtocolTCP},
	Source:      netip.MustParseAddr("10.244.0.9"), Interface: "veth0",
}

// chosen is a table with one rule that has a map choose an endpoint by a random number.
func chosen() *listed {
	hook := &nft.Hook{Type: "nat", Number: unix.NF_INET_PRE_ROUTING, Priority: -100}
	endpoint := func(text string) []byte {
		e := netip.MustParseAddrPort(text)
		return append(e.Addr().AsSlice(), byte(e.Port()>>8), byte(e.Port()), 0, 0)
	}
	return &listed{
		chains: []nft.Chain{{Name: "nat-prerouting", Hook: hook}, {Name: "service"}},
		rules: []nft.Rule{
			{Chain: "nat-prerouting", Exprs: []nft.Expr{nft.Give(nft.Goto("service"))}},
			{Chain: "service", Exprs: []nft.Expr{nft.Random(3, 0), nft.Get("map", 0, 0), nft.DNAT(unix.NFPROTO_IPV4, 0, 1)}},
		},
		sets: []nft.ListedSet{{Name: "map", KeyLength: 4}},
		elements: map[string][]nft.Element{"map": {
			{Key: nft.HostNumber(0), Data: endpoint("10.244.0.1:8080")}, {Key: nft.HostNumber(1), Data: endpoint("10.244.0.1:8080")},
			{Key: nft.HostNumber(2), Data: endpoint("10.244.0.2:8080")},
		}},
	}
}

func read(t *testing.T, l *listed) *Table {
	t.Helper()
	table, err := Read(t.Context(), l, nft.Table{Name: TableName}, dataplane.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestShares(t *testing.T) {
	out, err := read(t, chosen()).Outcome(t.Context(), web)
	if err != nil {
		t.Fatal(err)
	}
	if got := out.Shares[netip.MustParseAddrPort("10.244.0.1:8080")]; math.Abs(got-2./3) > 1e-9 || len(out.Shares) != 2 {
		t.Errorf("shares %v", out.Shares)
	}
	if got, want := out.String(), "translated to 10.244.0.1:8080 (67%), 10.244.0.2:8080 (33%)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	l := chosen()
	l.elements["map"] = l.elements["map"][:2]
	if out, err := read(t, l).Outcome(t.Context(), web); err != nil || out.Fate != Varies {
		t.Errorf("without an endpoint for a number: %v, %v", out, err)
	}
}

// TestWhatIsUnknown is an error, and ends.
func TestWhatIsUnknown(t *testing.T) {
	if table := read(t, &listed{}); table != nil {
		t.Error("there is a table")
	}
	for want, edit := range map[string]func(l *listed){
		"does not exist":         func(l *listed) { l.rules[0].Exprs[0] = nft.Give(nft.Goto("gone")) },
		"loop":                   func(l *listed) { l.rules[1].Exprs = []nft.Expr{nft.Give(nft.Goto("service"))} },
		"look up in set other":   func(l *listed) { l.rules[1].Exprs[1] = nft.Get("other", 0, 0) },
		"meta 3999 is unknown":   func(l *listed) { l.rules[1].Exprs[0] = nft.Meta(3999, 0) },
		"of a header are":        func(l *listed) { l.rules[1].Exprs[0] = nft.Network(18, 4, 0) },
		`expression "" is unkno`: func(l *listed) { l.rules[1].Exprs[0] = nil },
		"more than":              func(l *listed) { l.rules[1].Exprs = []nft.Expr{nft.Random(1<<30, 0)} },
	} {
		l := chosen()
		edit(l)
		table := read(t, l)
		table.work = maxWork - 10_000
		if out, err := table.Outcome(t.Context(), web); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", want, out, err)
		}
	}
	l := chosen()
	l.err = errors.New("broken")
	if _, err := Read(t.Context(), l, nft.Table{Name: TableName}, dataplane.IPv4); !errors.Is(err, l.err) {
		t.Errorf("got %v", err)
	}
}

// endless is a table of which listings do not end soon.
type endless struct {
	*listed
	rules, elements int
}

func (e *endless) Rules(nft.Table) ([]nft.Rule, error) {
	return append(make([]nft.Rule, e.rules), e.listed.rules...), nil
}

func (e *endless) Elements(t nft.Table, name string, yield func(*nft.Element)) error {
	for range e.elements {
		yield(&nft.Element{Key: nft.HostNumber(9)})
	}
	return e.listed.Elements(t, name, yield)
}

// TestBounds: a table takes neither memory nor time without end, and nothing once the context is done.
func TestBounds(t *testing.T) {
	for want, l := range map[string]*endless{
		"has 500002 rules, more than 500000": {chosen(), maxRules, 0},
		"more than 1000000 elements":         {chosen(), 0, maxElements},
	} {
		if _, err := Read(t.Context(), l, nft.Table{Name: TableName}, dataplane.IPv4); !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	table := read(t, chosen())
	table.work = maxWork - 1
	if _, err := table.Outcome(t.Context(), web); !errors.Is(err, ErrTooLarge) {
		t.Errorf("beyond the rules that packets may pass: %v", err)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(done, chosen(), nft.Table{Name: TableName}, dataplane.IPv4); !errors.Is(err, context.Canceled) {
		t.Errorf("reading once the context is done: %v", err)
	}
	if _, err := read(t, chosen()).Outcome(done, web); !errors.Is(err, context.Canceled) {
		t.Errorf("predicting once the context is done: %v", err)
	}
}

// TestProgress: sets that are read and ways that are followed count as progress.
func TestProgress(t *testing.T) {
	steps := 0
	ctx := dataplane.WithProgress(t.Context(), func() { steps++ })
	table, err := Read(ctx, chosen(), nft.Table{Name: TableName}, dataplane.IPv4)
	if err != nil || steps != 1 {
		t.Errorf("%d steps after reading a table with a set, %v", steps, err)
	}
	if _, err := table.Outcome(ctx, web); err != nil || steps != 1+3 {
		t.Errorf("%d steps after following a packet on three ways, %v", steps, err)
	}
}

// TestRanges: the kernel lists where they end as elements of their own.
func TestRanges(t *testing.T) {
	a := func(text string) []byte { return netip.MustParseAddr(text).AsSlice() }
	l := chosen()
	l.sets = append(l.sets, nft.ListedSet{Name: "ranges", KeyLength: 4, Flags: unix.NFT_SET_INTERVAL})
	l.elements["ranges"] = []nft.Element{
		{Key: a("10.0.2.0"), IntervalEnd: true}, {Key: a("10.0.1.0")}, {Key: a("10.0.1.0"), IntervalEnd: true}, {Key: a("10.0.0.0")}, {Key: a("192.0.2.0"), End: a("192.0.2.255")},
	}
	s := read(t, l).sets["ranges"]
	for address, want := range map[string]bool{
		"9.255.255.255": false, "10.0.0.0": true, "10.0.0.255": true, "10.0.1.0": true, "10.0.1.255": true, "10.0.2.0": false,
		"192.0.1.255": false, "192.0.2.0": true, "192.0.2.255": true, "192.0.3.0": false,
	} {
		if got := s.find(a(address)) != nil; got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
}

package kubeproxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TableName is the name of kube-proxy's table, one for each IP family.
const TableName = "kube-proxy"

// Maps and sets by which kube-proxy knows what to do with a destination.
const (
	mapServices    = "service-ips"
	mapNodePorts   = "service-nodeports"
	mapNoEndpoints = "no-endpoint-services"
	mapNoNodePort  = "no-endpoint-nodeports"
	mapFirewall    = "firewall-ips"
)

// Kernel lists tables of nf_tables; an nft.Conn does.
type Kernel interface {
	Chains(t nft.Table) ([]nft.Chain, error)
	Rules(t nft.Table) ([]nft.Rule, error)
	Sets(t nft.Table) ([]nft.ListedSet, error)
	Elements(t nft.Table, set string, yield func(*nft.Element)) error
}

// Table is kube-proxy's table of one IP family.
type Table struct {
	family dataplane.Family
	// hooks are the base chains, by priority.
	hooks []nft.Chain
	rules map[string][]nft.Rule // by chain
	sets  map[string]*set
	// work counts the rules that packets have passed, elements those of all sets.
	work, elements int
}

const (
	// maxRules and maxElements bound what Read keeps, maxWork the rules that all packets pass.
	maxRules, maxElements = 500_000, 1_000_000
	maxWork               = 100_000_000
)

// ErrTooLarge is returned for a table, or a part of it, that would take too much memory or time.
var ErrTooLarge = errors.New("too large to be compared")

// set is a set or a map with its elements.
type set struct {
	keyLength int
	elements  map[string]nft.Element
	// starts are the elements of a set of ranges, by key. Where a range ends is one that is an end.
	starts  []nft.Element
	timeout time.Duration
}

// Read reads a table; nil: there is none.
func Read(ctx context.Context, k Kernel, of nft.Table, family dataplane.Family) (*Table, error) {
	t := &Table{family: family, rules: map[string][]nft.Rule{}, sets: map[string]*set{}}
	chains, err := k.Chains(of)
	if err != nil {
		return nil, fmt.Errorf("list the chains of table %s: %w", of.Name, err)
	}
	if len(chains) == 0 {
		return nil, nil
	}
	for _, c := range chains {
		t.rules[c.Name] = nil
		if c.Hook != nil {
			t.hooks = append(t.hooks, c)
		}
	}
	slices.SortStableFunc(t.hooks, func(a, b nft.Chain) int { return int(a.Hook.Priority) - int(b.Hook.Priority) })
	rules, err := k.Rules(of)
	if err != nil {
		return nil, fmt.Errorf("list the rules of table %s: %w", of.Name, err)
	}
	if len(rules) > maxRules {
		return nil, fmt.Errorf("table %s is %w: it has %d rules, more than %d", of.Name, ErrTooLarge, len(rules), maxRules)
	}
	for _, r := range rules {
		t.rules[r.Chain] = append(t.rules[r.Chain], r)
	}
	sets, err := k.Sets(of)
	if err != nil {
		return nil, fmt.Errorf("list the sets of table %s: %w", of.Name, err)
	}
	for _, s := range sets {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("read table %s: %w", of.Name, err)
		}
		dataplane.Progress(ctx)
		if err := t.addSet(k, of, s); err != nil {
			return nil, fmt.Errorf("list set %s of table %s: %w", s.Name, of.Name, err)
		}
		if t.elements > maxElements {
			return nil, fmt.Errorf("table %s is %w: its sets have more than %d elements", of.Name, ErrTooLarge, maxElements)
		}
	}
	return t, nil
}

// addSet reads a set; of those to which packets add elements only how long these stay.
func (t *Table) addSet(k Kernel, of nft.Table, listed nft.ListedSet) error {
	s := &set{keyLength: int(listed.KeyLength), elements: map[string]nft.Element{}, timeout: listed.Timeout}
	t.sets[listed.Name] = s
	if listed.Timeout > 0 {
		return nil
	}
	err := k.Elements(of, listed.Name, func(e *nft.Element) {
		if t.elements++; t.elements > maxElements {
			return
		}
		one := *e
		one.Key, one.End, one.Data = slices.Clone(e.Key), slices.Clone(e.End), slices.Clone(e.Data)
		if listed.Flags&unix.NFT_SET_INTERVAL != 0 {
			s.starts = append(s.starts, one)
		} else {
			s.elements[string(one.Key)] = one
		}
	})
	// A range begins where the one before ends: the end comes first.
	slices.SortStableFunc(s.starts, func(a, b nft.Element) int {
		if order := bytes.Compare(a.Key, b.Key); order != 0 || a.IntervalEnd == b.IntervalEnd {
			return order
		}
		if a.IntervalEnd {
			return -1
		}
		return 1
	})
	return err
}

// find returns the element with a key; nil: there is none.
func (s *set) find(key []byte) *nft.Element {
	if e, found := s.elements[string(key)]; found {
		return &e
	}
	after := sort.Search(len(s.starts), func(i int) bool { return bytes.Compare(s.starts[i].Key, key) > 0 })
	if after == 0 {
		return nil
	}
	last := &s.starts[after-1]
	if last.IntervalEnd || last.End != nil && bytes.Compare(key, last.End) > 0 {
		return nil
	}
	return last
}

// Served yields the destinations that the table handles, with the Services that its chains or
// comments name. Of node ports it yields those at the given addresses.
func (t *Table) Served(nodePorts []netip.Addr) iter.Seq2[Destination, dataplane.ServiceName] {
	return func(yield func(Destination, dataplane.ServiceName) bool) {
		for _, name := range []string{mapServices, mapNoEndpoints, mapFirewall, mapNodePorts, mapNoNodePort} {
			s := t.sets[name]
			if s == nil {
				continue
			}
			for _, e := range s.elements {
				service := serviceOf(&e)
				addresses, rest := nodePorts, e.Key
				if name != mapNodePorts && name != mapNoNodePort {
					n := t.addressLength()
					if len(e.Key) < n {
						continue
					}
					a, _ := netip.AddrFromSlice(e.Key[:n])
					addresses, rest = []netip.Addr{a}, e.Key[n:]
				}
				protocol, port, err := parsePort(rest)
				if err != nil {
					continue
				}
				for _, a := range addresses {
					if !yield(Destination{netip.AddrPortFrom(a, port), protocol}, service) {
						return
					}
				}
			}
		}
	}
}

// serviceOf returns the Service that the chain or the comment of an element names; zero: none.
func serviceOf(e *nft.Element) dataplane.ServiceName {
	text := e.Comment
	if chain := e.Verdict.Chain; strings.Contains(chain, "/") { // service-HASH-namespace/name/protocol/port
		_, text, _ = strings.Cut(chain, "-")
		_, text, _ = strings.Cut(text, "-")
	}
	namespace, rest, found := strings.Cut(text, "/")
	if !found {
		return dataplane.ServiceName{}
	}
	if at := strings.IndexAny(rest, "/:"); at >= 0 {
		rest = rest[:at]
	}
	return dataplane.ServiceName{Namespace: namespace, Name: rest}
}

// Boundaries are addresses at which the sets of sources begin or end by which the table restricts a
// destination.
func (t *Table) Boundaries(d Destination) []netip.Addr {
	s := t.sets[mapFirewall]
	if s == nil {
		return nil
	}
	e := s.find(slices.Concat(pad(d.Addr().AsSlice()), pad([]byte{dataplane.ProtocolNumber(d.Protocol)}), pad(binary.BigEndian.AppendUint16(nil, d.Port()))))
	if e == nil {
		return nil
	}
	var out []netip.Addr
	for _, r := range t.rules[e.Verdict.Chain] {
		for _, one := range r.Exprs {
			name, data := parse(one)
			of := t.sets[text(data[unix.NFTA_LOOKUP_SET])]
			if name != "lookup" || of == nil {
				continue
			}
			for _, start := range of.starts {
				for _, b := range [][]byte{start.Key, start.End} {
					if a, ok := netip.AddrFromSlice(b); ok {
						out = append(out, a, a.Prev())
					}
				}
			}
		}
	}
	return slices.DeleteFunc(out, func(a netip.Addr) bool { return !a.IsValid() })
}

var errUnknown = errors.New("of an unknown layout")

// parsePort parses the protocol and the port in a key.
func parsePort(b []byte) (v1alpha1.Protocol, uint16, error) {
	if len(b) < 6 {
		return "", 0, errUnknown
	}
	protocol := dataplane.ProtocolOf(b[0])
	if protocol == "" {
		return "", 0, errUnknown
	}
	return protocol, binary.BigEndian.Uint16(b[4:]), nil
}

// pad appends zeros to the end of a register.
func pad(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

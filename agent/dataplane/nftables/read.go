package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
)

// kernel is what the data plane needs of nf_tables. An nft.Conn has it.
type kernel interface {
	// Port identifies the socket in events.
	Port() uint32
	Commit(b *nft.Batch, generation uint32) error
	Generation() (uint32, error)
	HasTable(t nft.Table) (found bool, of nft.Ownership, err error)
	Chains(t nft.Table) ([]nft.Chain, error)
	Rules(t nft.Table) ([]nft.Rule, error)
	Sets(t nft.Table) ([]nft.ListedSet, error)
	Elements(t nft.Table, set string, yield func(*nft.Element)) error
	Find(t nft.Table, set string, key []byte) (*nft.Element, error)
}

// listing is what the kernel has of the table.
type listing struct {
	generation uint32
	period     int // of the journal
	exists     bool
	ownership  nft.Ownership
	owned      bool // by the socket that has read it
	sets       map[string]nft.ListedSet
	chains     map[string]*nft.Hook
	rules      map[string][][]nft.Expr // by chain
	elements   map[string]*elements    // by set
}

// list reads the table, but for what packets have added.
func (c *config) list(k kernel) (*listing, error) {
	l, err := c.listLayout(k)
	if err != nil {
		return nil, err
	}
	for name := range l.sets {
		if name == setAffinity {
			continue
		}
		if err := c.listSet(k, l, name); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// listSet reads the elements of a set.
func (c *config) listSet(k kernel, l *listing, name string) (err error) {
	l.elements[name], err = dump("list set "+name+" of table", l.owned, (*elements).equal, func() (*elements, error) {
		out := newElements(name == setEndpoints || name == setLocal)
		err := k.Elements(c.table(), name, out.add)
		return out, err
	})
	return err
}

// listLayout reads the chains and sets of the table.
func (c *config) listLayout(k kernel) (*listing, error) {
	t := c.table()
	l := &listing{
		sets: map[string]nft.ListedSet{}, chains: map[string]*nft.Hook{}, rules: map[string][][]nft.Expr{},
		elements: map[string]*elements{},
	}
	var err error
	if l.generation, err = k.Generation(); err != nil {
		return nil, fmt.Errorf("read the generation of nf_tables: %w", err)
	}
	if l.exists, l.ownership, err = k.HasTable(t); err != nil || !l.exists {
		return l, wrap("read table", err)
	}
	l.owned = l.ownership.Port != 0 && l.ownership.Port == k.Port()
	// The kernel lists the chains of all tables, so that their owners matter, too.
	chains, err := dump("list the chains of table", false, deepEqual[[]nft.Chain], func() ([]nft.Chain, error) {
		return k.Chains(t)
	})
	if err != nil {
		return nil, err
	}
	for _, chain := range chains {
		l.chains[chain.Name] = chain.Hook
	}
	rules, err := dump("list the rules of table", l.owned, deepEqual[[]nft.Rule], func() ([]nft.Rule, error) {
		return k.Rules(t)
	})
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		l.rules[r.Chain] = append(l.rules[r.Chain], r.Exprs)
	}
	sets, err := dump("list the sets of table", l.owned, deepEqual[[]nft.ListedSet], func() ([]nft.ListedSet, error) {
		return k.Sets(t)
	})
	if err != nil {
		return nil, err
	}
	for _, s := range sets {
		if s.Flags&unix.NFT_SET_ANONYMOUS == 0 { // else it is a part of the rule that names it
			l.sets[s.Name] = s
		}
	}
	return l, nil
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, TableName, err)
}

// errNotOurs is returned for elements that are not of the layout.
var errNotOurs = errors.New("not of the layout")

// parseKey parses a destination at the beginning of a key.
func (c *config) parseKey(b []byte) (key, error) {
	n := int(c.header().length)
	if len(b) < n+8 {
		return key{}, errNotOurs
	}
	a, _ := netip.AddrFromSlice(b[:n])
	protocol := dataplane.ProtocolOf(b[n])
	if protocol == "" || !isZero(b[n+1:n+4]) || !isZero(b[n+6:n+8]) { // padding
		return key{}, errNotOurs
	}
	return key{netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[n+4:])), protocol}, nil
}

func (c *config) parseEndpoint(b []byte) (netip.AddrPort, error) {
	n := int(c.header().length)
	if len(b) < n+2 {
		return netip.AddrPort{}, errNotOurs
	}
	a, _ := netip.AddrFromSlice(b[:n])
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[n:])), nil
}

// parseChain parses the name of a shared chain.
func parseChain(name string) (chain, bool) {
	for _, limited := range []bool{false, true} {
		if c := (chain{treatment: reject, limited: limited}); name == c.name() {
			return c, true
		}
	}
	at := strings.LastIndexByte(name, '-')
	if at < 0 {
		return chain{}, false
	}
	count, err := strconv.Atoi(name[at+1:])
	if err != nil || count < 0 {
		return chain{}, false
	}
	out := chain{count: count}
	text := name[:at]
	text, out.limited = strings.CutPrefix(text, "limited-")
	text, out.affine = strings.CutSuffix(text, "-affine")
	if out.treatment = treatment(text); out.treatment == externalLocal {
		out.local = true
	} else if text, out.local = strings.CutSuffix(text, "-local"); out.local {
		out.treatment = treatment(text)
	}
	return out, out.name() == name && slices.Contains([]treatment{pick, cluster, external, externalLocal}, out.treatment)
}

// parseService parses the comment of a destination: its Service, and the name of its port.
func parseService(comment string) (name dataplane.ServiceName, port string) {
	namespace, rest, _ := strings.Cut(comment, "/")
	service, port, _ := strings.Cut(rest, ":")
	return dataplane.ServiceName{Namespace: namespace, Name: service}, port
}

// state returns what the table has as a state, and the elements that are not of the layout. A
// destination with anything unexpected is in neither way complete: it differs from any desired one.
func (c *config) state(l *listing) *state {
	s := newState()
	for name := range l.chains {
		if parsed, ok := parseChain(name); ok {
			s.chains[parsed] = struct{}{}
		}
	}
	for name := range l.sets {
		if set, ok := c.parseNumbered(name); ok {
			s.numbered[set] = struct{}{}
		}
	}
	ranges := c.listedRanges(l, s.numbered)
	for e := range l.elements[setServices].all() {
		if o := c.addService(s, l, e); o != nil {
			o.ranges = ranges[string(e.Key)]
		}
	}
	for set, addresses := range map[string]map[netip.Addr]int{setClusterIPs: s.clusterIPs, setHairpin: s.hairpin} {
		for e := range l.elements[set].all() {
			if a, ok := c.parseAddress(e.Key); ok {
				addresses[a] = 0
			}
		}
	}
	return s
}

// listedRanges are the source ranges of a listing, sorted, by the key of their destination.
func (c *config) listedRanges(l *listing, sets numberedSets) map[string][]netip.Prefix {
	out := map[string][]netip.Prefix{}
	for _, bits := range numbers(sets, rangesPrefix) {
		for e := range l.elements[rangesSet(int(bits))].all() {
			at := max(len(e.Key)-int(c.header().length), 0)
			if first, ok := c.parseAddress(e.Key[at:]); ok {
				out[string(e.Key[:at])] = append(out[string(e.Key[:at])], netip.PrefixFrom(first, int(bits)))
			}
		}
	}
	for _, ranges := range out {
		slices.SortFunc(ranges, netip.Prefix.Compare)
	}
	return out
}

// parseAddress parses an address at the beginning of a key.
func (c *config) parseAddress(b []byte) (netip.Addr, bool) {
	n := int(c.header().length)
	if len(b) < n {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(b[:n])
}

// addService adds a destination of a listing to a state; nil: it is none.
func (c *config) addService(s *state, l *listing, e *nft.Element) *destination {
	k, err := c.parseKey(e.Key)
	if err != nil {
		return nil
	}
	name, port := parseService(e.Comment)
	d := &destination{key: k, port: port}
	if e.Verdict.Chain != "" {
		d.chain, _ = parseChain(e.Verdict.Chain)
	}
	d.endpoints, d.local = c.listed(l.elements[setEndpoints], e.Key), c.listed(l.elements[setLocal], e.Key)
	if circuit := l.elements[setCircuit].find(e.Key); circuit != nil {
		d.circuit, _ = parseChain(circuit.Verdict.Chain)
	}
	for _, seconds := range numbers(s.numbered, affinePrefix) {
		if l.elements[affineSet(seconds)].find(e.Key) != nil {
			d.affinity = seconds
		}
	}
	s.destinations[k] = owned{name, d}
	return d
}

// listed are the endpoints of a destination in a listing, by index up to the first that is missing.
func (c *config) listed(from *elements, k []byte) []netip.AddrPort {
	out := make([]netip.AddrPort, 0, from.packedAt(k))
	at := indexed(k, 0)
	for {
		binary.NativeEndian.PutUint32(at[len(k):], uint32(len(out))) //nolint:gosec // few
		data := from.data(at)
		if data == nil {
			return out
		}
		endpoint, err := c.parseEndpoint(data)
		if err != nil {
			return out
		}
		out = append(out, endpoint)
	}
}

package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nft"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// kernel is what the data plane needs of nf_tables. An nft.Conn has it.
type kernel interface {
	// Port identifies the socket in events.
	Port() uint32
	Commit(b *nft.Batch, generation uint32) error
	Generation() (uint32, error)
	HasTable(t nft.Table) (found, owned bool, err error)
	Chains(t nft.Table) ([]nft.Chain, error)
	Rules(t nft.Table) ([]nft.Rule, error)
	Sets(t nft.Table) ([]nft.ListedSet, error)
	Elements(t nft.Table, set string, yield func(*nft.Element)) error
}

// listing is what the kernel has of the table.
type listing struct {
	generation uint32
	exists     bool
	sets       map[string]nft.ListedSet
	chains     map[string]*nft.Hook
	rules      map[string][][]nft.Expr // by chain
	elements   map[string]map[string]nft.Element
}

// list reads the table, but for what packets have added.
func (c *config) list(k kernel) (*listing, error) {
	t := c.table()
	l := &listing{
		sets: map[string]nft.ListedSet{}, chains: map[string]*nft.Hook{}, rules: map[string][][]nft.Expr{},
		elements: map[string]map[string]nft.Element{},
	}
	var err error
	if l.generation, err = k.Generation(); err != nil {
		return nil, fmt.Errorf("read the generation of nf_tables: %w", err)
	}
	if l.exists, _, err = k.HasTable(t); err != nil || !l.exists {
		return l, wrap("read table", err)
	}
	chains, err := k.Chains(t)
	if err != nil {
		return nil, wrap("list the chains of table", err)
	}
	for _, chain := range chains {
		l.chains[chain.Name] = chain.Hook
	}
	rules, err := k.Rules(t)
	if err != nil {
		return nil, wrap("list the rules of table", err)
	}
	for _, r := range rules {
		l.rules[r.Chain] = append(l.rules[r.Chain], r.Exprs)
	}
	sets, err := k.Sets(t)
	if err != nil {
		return nil, wrap("list the sets of table", err)
	}
	for _, s := range sets {
		l.sets[s.Name] = s
		if s.Name == setAffinity {
			continue
		}
		l.elements[s.Name] = map[string]nft.Element{}
		err := k.Elements(t, s.Name, func(e *nft.Element) {
			e.Key, e.End, e.Data = slices.Clone(e.Key), slices.Clone(e.End), slices.Clone(e.Data)
			l.elements[s.Name][string(e.Key)] = *e
		})
		if err != nil {
			return nil, wrap("list set "+s.Name+" of table", err)
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

// errForeign is returned for elements that are not of the layout.
var errForeign = errors.New("not of the layout")

// parseKey parses a destination at the beginning of a key.
func (c *config) parseKey(b []byte) (key, error) {
	n := int(c.header().length)
	if len(b) < n+8 {
		return key{}, errForeign
	}
	a, _ := netip.AddrFromSlice(b[:n])
	protocols := map[byte]v1alpha1.Protocol{
		unix.IPPROTO_TCP: v1alpha1.ProtocolTCP, unix.IPPROTO_UDP: v1alpha1.ProtocolUDP, unix.IPPROTO_SCTP: v1alpha1.ProtocolSCTP,
	}
	protocol, found := protocols[b[n]]
	if !found {
		return key{}, errForeign
	}
	return key{netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[n+4:])), protocol}, nil
}

func (c *config) parseEndpoint(b []byte) (netip.AddrPort, error) {
	n := int(c.header().length)
	if len(b) < n+2 {
		return netip.AddrPort{}, errForeign
	}
	a, _ := netip.AddrFromSlice(b[:n])
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[n:])), nil
}

// parseChain parses the name of a shared chain.
func parseChain(name string) (chain, bool) {
	if name == reject.name() {
		return chain{treatment: reject}, true
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
		if text, ok := strings.CutPrefix(name, "affine-"); ok {
			if seconds, err := strconv.ParseInt(text, 10, 32); err == nil && seconds > 0 {
				s.timeouts[int32(seconds)] = struct{}{}
			}
		}
	}
	for _, e := range l.elements[setServices] {
		c.addService(s, l, &e)
	}
	for _, e := range l.elements[setClusterIPs] {
		if a, ok := netip.AddrFromSlice(e.Key); ok {
			s.clusterIPs[a] = 0
		}
	}
	return s
}

// addService adds a destination of a listing to a state.
func (c *config) addService(s *state, l *listing, e *nft.Element) {
	k, err := c.parseKey(e.Key)
	if err != nil {
		return
	}
	name, port := parseService(e.Comment)
	d := &destination{key: k, port: port}
	if e.Verdict.Chain != "" {
		d.chain, _ = parseChain(e.Verdict.Chain)
	}
	d.endpoints, d.local = c.listed(l.elements[setEndpoints], e.Key), c.listed(l.elements[setLocal], e.Key)
	if circuit, found := l.elements[setCircuit][string(e.Key)]; found {
		d.circuit, _ = parseChain(circuit.Verdict.Chain)
	}
	for seconds := range s.timeouts {
		if _, found := l.elements[affineSet(seconds)][string(e.Key)]; found {
			d.affinity = seconds
		}
	}
	s.destinations[k] = owned{name, d}
}

// listed are the endpoints of a destination in a listing, by index up to the first that is missing.
func (c *config) listed(elements map[string]nft.Element, k []byte) []netip.AddrPort {
	var out []netip.AddrPort
	for {
		e, found := elements[string(indexed(k, len(out)))]
		if !found {
			return out
		}
		endpoint, err := c.parseEndpoint(e.Data)
		if err != nil {
			return out
		}
		out = append(out, endpoint)
	}
}

package nftablesmodel

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
)

// Kernel has the tables of a node. Its methods are not called concurrently.
type Kernel struct {
	// Random chooses below a limit where a rule asks for a random number. Nil: Trace follows all
	// numbers.
	Random func(limit uint32) uint32

	addresses  []netip.Addr
	tables     map[nft.Table]*table
	generation uint32
	handles    uint64
	now        time.Duration
}

type table struct {
	nft.Table
	flags  uint32
	chains map[string]*chain
	sets   map[string]*set
}

type chain struct {
	nft.Chain
	policy int32
	// handle numbers chains in the order in which they were made.
	handle uint64
	rules  []*rule
}

// New returns the kernel of a node with the given addresses besides those of the loopback interface.
func New(addresses ...netip.Addr) *Kernel {
	return &Kernel{addresses: addresses, tables: map[nft.Table]*table{}, generation: 1}
}

// Addresses are those of the node's interfaces.
func (k *Kernel) Addresses() []netip.Addr {
	return append([]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, k.addresses...)
}

// SetAddresses gives the node's interfaces other addresses.
func (k *Kernel) SetAddresses(addresses ...netip.Addr) { k.addresses = addresses }

// Local reports whether packets to an address stay on the node.
func (k *Kernel) Local(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(k.addresses, a) }

// Pass lets time pass: elements expire.
func (k *Kernel) Pass(d time.Duration) { k.now += d }

// Port identifies the socket.
func (k *Kernel) Port() uint32 { return 1 }

// Generation returns that of all tables: it changes with each batch that changes something.
func (k *Kernel) Generation() (uint32, error) { return k.generation, nil }

// HasTable reports whether there is a table, and who may change it: only this socket if one owns it.
func (k *Kernel) HasTable(t nft.Table) (found bool, of nft.Ownership, err error) {
	have := k.tables[t]
	if have == nil {
		return false, of, nil
	}
	if have.flags&unix.NFT_TABLE_F_OWNER != 0 {
		of.Port = k.Port()
	}
	of.Persists = have.flags&unix.NFT_TABLE_F_PERSIST != 0
	return true, of, nil
}

// Chains lists the chains of a table; none if there is no table.
func (k *Kernel) Chains(t nft.Table) ([]nft.Chain, error) {
	var out []nft.Chain
	for _, c := range k.tables[t].sorted() {
		out = append(out, c.Chain)
	}
	return out, nil
}

// sorted are the chains in the order in which they were made.
func (t *table) sorted() []*chain {
	if t == nil {
		return nil
	}
	return slices.SortedFunc(maps.Values(t.chains), func(a, b *chain) int { return int(int64(a.handle) - int64(b.handle)) }) //nolint:gosec // few
}

// Rules lists the rules of a table, chain by chain, in their order.
func (k *Kernel) Rules(t nft.Table) ([]nft.Rule, error) {
	var out []nft.Rule
	for _, c := range k.tables[t].sorted() {
		for _, r := range c.rules {
			out = append(out, r.Rule)
		}
	}
	return out, nil
}

// Sets lists the sets and maps of a table.
func (k *Kernel) Sets(t nft.Table) ([]nft.ListedSet, error) {
	have := k.tables[t]
	if have == nil {
		return nil, nil
	}
	var out []nft.ListedSet
	for _, name := range slices.Sorted(maps.Keys(have.sets)) {
		out = append(out, have.sets[name].ListedSet)
	}
	return out, nil
}

// Elements calls yield with each element of a set.
func (k *Kernel) Elements(t nft.Table, name string, yield func(*nft.Element)) error {
	s, err := k.set(t, name)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(s.elements)) {
		if e := s.elements[key]; k.alive(e) {
			one := e.Clone()
			yield(&one)
		}
	}
	return nil
}

// Find returns the element with a key; nil if there is none.
func (k *Kernel) Find(t nft.Table, name string, key []byte) (*nft.Element, error) {
	s, err := k.set(t, name)
	if err != nil {
		return nil, nil //nolint:nilerr // there is no element either
	}
	if e := k.find(s, key); e != nil {
		one := e.Clone()
		return &one, nil
	}
	return nil, nil
}

func (k *Kernel) set(t nft.Table, name string) (*set, error) {
	if have := k.tables[t]; have != nil && have.sets[name] != nil {
		return have.sets[name], nil
	}
	return nil, unix.ENOENT
}

// learn adds an element to a dynamic map, as a packet does.
func (k *Kernel) learn(l learned) {
	if e := l.set.elements[string(l.Key)]; e != nil && k.alive(e) {
		e.expires = k.now + l.timeout
		return
	}
	if l.set.full() {
		k.expire(l.set)
	}
	if !l.set.full() {
		l.set.elements[string(l.Key)] = &element{Element: l.Element, expires: k.now + l.timeout}
	}
}

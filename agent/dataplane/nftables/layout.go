package nftables

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
)

// TableName is the name of our table, one for each IP family.
const TableName = "nodeproxy"

const tableComment = "Services of this node, programmed by nodeproxy. Do not change."

// Sets and maps of the table.
const (
	// setServices maps a destination to what becomes of its packets. Packets that are not for
	// Services pay for this lookup only.
	setServices = "service-ips"
	// setEndpoints and setLocal map a destination and an index to an endpoint.
	setEndpoints = "endpoints"
	setLocal     = "local-endpoints"
	// setCircuit maps a destination of policy Local to where packets from pods and the node go.
	setCircuit = "short-circuit"
	// setAffinity maps a client and a destination to the endpoint that the client keeps.
	setAffinity = "affinity"
	// setClusterIPs has all cluster IPs.
	setClusterIPs = "cluster-ips"
	// setHairpin has pairs of the same address: an endpoint that is its own client.
	setHairpin = "hairpin"
)

// maxAffinity bounds the clients that keep an endpoint. One more gets any endpoint.
const maxAffinity = 1 << 20

// numberedSet is a set of which the table has one for each number that a Service has needed. Packets
// look up all sets of a kind, so there are few.
type numberedSet struct {
	kind   string
	number int32
}

func (s numberedSet) compare(with numberedSet) int {
	return cmp.Or(cmp.Compare(s.kind, with.kind), cmp.Compare(s.number, with.number))
}

type numberedSets = map[numberedSet]struct{}

// Kinds of numbered sets.
const (
	// affinePrefix: destinations whose clients keep their endpoint for so many seconds.
	affinePrefix = "affine-"
	// rangesPrefix: destinations with the networks of so many bits that are allowed. All of them are hash
	// tables: the ranges of one Service cost no other. A set of intervals is walked and copied whenever
	// it changes, and a set for each Service makes every lookup of a set by its name longer.
	rangesPrefix = "source-ranges-"
)

func (s numberedSet) name() string { return s.kind + strconv.Itoa(int(s.number)) }

func affineSet(seconds int32) string { return numberedSet{affinePrefix, seconds}.name() }

func rangesSet(bits int) string { return numberedSet{rangesPrefix, int32(bits)}.name() } //nolint:gosec // up to 128

// parseNumbered parses the name of a numbered set.
func (c *config) parseNumbered(name string) (numberedSet, bool) {
	at := strings.LastIndexByte(name, '-') + 1
	n, err := strconv.ParseInt(name[at:], 10, 32)
	s := numberedSet{name[:at], int32(n)} //nolint:gosec // checked
	switch {
	case err != nil || s.name() != name:
		return s, false
	case s.kind == rangesPrefix:
		return s, 0 <= n && n <= int64(c.header().length)*8
	default:
		return s, s.kind == affinePrefix && n > 0
	}
}

// numbers are those of the sets of a kind, in descending order.
func numbers(of numberedSets, kind string) []int32 {
	var out []int32
	for s := range of {
		if s.kind == kind {
			out = append(out, s.number)
		}
	}
	slices.SortFunc(out, func(a, b int32) int { return cmp.Compare(b, a) })
	return out
}

// destinationKey are the types of a destination in keys.
func (c *config) destinationKey(more ...nft.Type) []nft.Type {
	return append([]nft.Type{c.header().address, nft.Protocol, nft.Port}, more...)
}

// sets are the sets and maps of the table, but for numbered ones.
func (c *config) sets() []*nft.Set {
	address := c.header().address
	endpoint := []nft.Type{address, nft.Port}
	return []*nft.Set{
		{Name: setServices, Key: c.destinationKey(), Verdicts: true},
		{Name: setEndpoints, Key: c.destinationKey(nft.Number), Data: endpoint},
		{Name: setLocal, Key: c.destinationKey(nft.Number), Data: endpoint},
		{Name: setCircuit, Key: c.destinationKey(), Verdicts: true},
		{Name: setAffinity, Key: append([]nft.Type{address}, c.destinationKey()...), Data: endpoint, Dynamic: true, Size: maxAffinity},
		{Name: setClusterIPs, Key: []nft.Type{address}},
		{Name: setHairpin, Key: []nft.Type{address, address}},
	}
}

func (c *config) numbered(s numberedSet) *nft.Set {
	out := &nft.Set{Name: s.name(), Key: c.destinationKey()}
	if s.kind == rangesPrefix {
		out.Key = append(out.Key, c.header().address)
	}
	return out
}

// rule is a rule of a chain.
type rule []nft.Expr

// fixedChain is a chain that does not depend on Services, except for numbered sets.
type fixedChain struct {
	name  string
	hook  *nft.Hook
	rules []rule
	// numbered: its rules depend on the numbered sets.
	numbered bool
}

// Priorities of base chains: just before dstnat and srcnat, so that packets meet our rules before
// those of iptables and of kube-proxy, whichever was there first; and filter.
const (
	priorityDestinationNAT = -101
	prioritySourceNAT      = 99
	priorityFilter         = 0
)

// chainSources is the chain that returns packets from allowed sources and drops others.
const chainSources = "allowed-sources"

// fixedChains are the chains with hooks, and those to which others lead, of a table with some numbered
// sets.
func (c *config) fixedChains(sets numberedSets) []fixedChain {
	// Twice, as pick looks up endpoints: a kernel before Linux 6.17 may miss an element while a batch
	// replaces it, but only once for each batch.
	lookup := append(c.loadDestination(0), nft.Follow(setServices, 0))
	dispatch := []rule{lookup, lookup}
	learn := c.learn(numbers(sets, affinePrefix))
	toClusterIP := append(c.loadAddress(c.header().destination, 0), nft.In(setClusterIPs, 0))
	unused := []rule{
		// Confirmed is a connection from before its Service came, which stays untranslated. A reset would
		// have the client's next one from that port reset, too, for ten seconds. Package conntrack removes
		// it while it waits, and the client's next try succeeds.
		slices.Concat(c.isNew(), c.confirmed(), toClusterIP, []nft.Expr{nft.Give(nft.Drop())}),
		slices.Concat(c.isNew(), toClusterIP, []nft.Expr{nft.Give(nft.Goto(reject.name()))}),
	}
	forward := unused
	if c.dropInvalid {
		forward = append([]rule{c.invalid()}, unused...)
	}
	return []fixedChain{
		{reject.name(), nil, []rule{
			{nft.Meta(unix.NFT_META_L4PROTO, 0), nft.Equal(0, []byte{unix.IPPROTO_TCP}), nft.RejectReset()},
			{nft.RejectUnreachable(c.table().Family)},
		}, false},
		{chainSources, nil, c.allowed(numbers(sets, rangesPrefix)), true},
		{"nat-prerouting", &nft.Hook{Type: "nat", Number: unix.NF_INET_PRE_ROUTING, Priority: priorityDestinationNAT}, dispatch, false},
		{"nat-output", &nft.Hook{Type: "nat", Number: unix.NF_INET_LOCAL_OUT, Priority: priorityDestinationNAT}, dispatch, false},
		{"nat-postrouting", &nft.Hook{Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: prioritySourceNAT}, append(slices.Clone(learn), c.masquerading()...), true},
		// Endpoints of the node itself; only for session affinity.
		{"nat-input", &nft.Hook{Type: "nat", Number: unix.NF_INET_LOCAL_IN, Priority: prioritySourceNAT}, learn, true},
		{"filter-forward", &nft.Hook{Type: "filter", Number: unix.NF_INET_FORWARD, Priority: priorityFilter}, forward, false},
		{"filter-output", &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_OUT, Priority: priorityFilter}, unused, false},
	}
}

func (t treatment) name() string { return chain{treatment: t}.name() }

// States and status bits of connections, as the kernel numbers them.
const (
	stateInvalid    = 1 << 0
	stateNew        = 1 << 3
	statusConfirmed = 1 << 3
	statusDNAT      = 1 << 5
)

func has(load nft.Expr, bits uint32) []nft.Expr {
	return []nft.Expr{load, nft.Bits(0, nft.HostNumber(bits), nft.HostNumber(0)), nft.NotEqual(0, nft.HostNumber(0))}
}

func (c *config) isNew() []nft.Expr { return has(nft.Conntrack(unix.NFT_CT_STATE, 0), stateNew) }

func (c *config) confirmed() []nft.Expr {
	return has(nft.Conntrack(unix.NFT_CT_STATUS, 0), statusConfirmed)
}

func (c *config) translated() []nft.Expr {
	return has(nft.Conntrack(unix.NFT_CT_STATUS, 0), statusDNAT)
}

// invalid drops packets that belong to no connection: a reset from the client for one of them would
// end a translated connection.
func (c *config) invalid() rule {
	return append(has(nft.Conntrack(unix.NFT_CT_STATE, 0), stateInvalid), nft.Give(nft.Drop()))
}

// learn are the rules that note which endpoint a client has got.
func (c *config) learn(timeouts []int32) []rule {
	var out []rule
	for _, seconds := range timeouts {
		for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
			h := c.header()
			n := h.registers()
			endpoint := 2*n + 2
			r := rule{nft.Meta(unix.NFT_META_L4PROTO, 0), nft.Equal(0, []byte{protocol})}
			r = append(r, c.translated()...)
			r = append(append(r, c.loadOriginal(0)...), nft.In(affineSet(seconds), 0))
			r = append(append(r, c.loadAddress(h.source, 0)...), c.loadOriginal(n)...)
			r = append(append(r, c.loadAddress(h.destination, endpoint)...), nft.Transport(2, 2, endpoint+n))
			out = append(out, append(r, nft.Learn(setAffinity, 0, endpoint, time.Duration(seconds)*time.Second)))
		}
	}
	return out
}

// allowed are the rules that return packets from ranges of so many bits each, and drop others. One lookup
// each suffices (see fixedChains): no batch replaces an element of these sets.
func (c *config) allowed(lengths []int32) []rule {
	h := c.header()
	source := h.registers() + 2
	var out []rule
	for _, bits := range lengths {
		r := append(rule(c.loadDestination(0)), c.loadAddress(h.source, source)...)
		if mask := maskOf(int(h.length), int(bits)); bits < 8*int32(h.length) { //nolint:gosec // 4 or 16
			r = append(r, nft.Bits(source, mask, make([]byte, len(mask))))
		}
		out = append(out, append(r, nft.In(rangesSet(int(bits)), 0), nft.Give(nft.Return())))
	}
	return append(out, rule{nft.Give(nft.Drop())})
}

// maskOf is a mask of so many bytes whose first bits are set.
func maskOf(length, bits int) []byte {
	mask := make([]byte, length)
	for i := range mask {
		mask[i] = ^byte(0xff >> min(max(bits-8*i, 0), 8))
	}
	return mask
}

// masquerading masquerades what is marked, and hairpin connections.
func (c *config) masquerading() []rule {
	h := c.header()
	marked := rule(has(nft.Meta(unix.NFT_META_MARK, 0), c.mark))
	marked = append(marked, nft.Meta(unix.NFT_META_MARK, 0), nft.Bits(0, nft.HostNumber(^uint32(0)), nft.HostNumber(c.mark)),
		nft.SetMeta(unix.NFT_META_MARK, 0), nft.Masquerade(true))
	hairpin := rule(c.translated())
	hairpin = append(append(hairpin, c.loadAddress(h.source, 0)...), c.loadAddress(h.destination, h.registers())...)
	return []rule{marked, append(hairpin, nft.In(setHairpin, 0), nft.Masquerade(true))}
}

// rules are the rules of a shared chain.
func (c *config) rules(of chain) []rule {
	h := c.header()
	n := h.registers()
	var out []rule
	if of.limited {
		of.limited = false
		return []rule{{nft.Give(nft.Jump(chainSources))}, {nft.Give(nft.Goto(of.name()))}}
	}
	after := chain{treatment: pick, local: of.local, affine: of.affine, count: of.count}
	switch of.treatment {
	case pick:
		if of.affine {
			r := append(rule(c.loadAddress(h.source, 0)), c.loadDestination(n)...)
			out = append(out, append(r, nft.Get(setAffinity, 0, 0), c.dnat()))
			after.affine = false
			return append(out, rule{nft.Give(nft.Goto(after.name()))})
		}
		// The second rule is for a batch that takes effect between the choice of the chain and the
		// lookup: index 0 is always there.
		for _, count := range []uint32{uint32(of.count), 1} { //nolint:gosec // not negative
			out = append(out, append(rule(c.loadDestination(0)), nft.Random(count, n+2), nft.Get(of.endpoints(), 0, 0), c.dnat()))
		}
		return out
	case cluster:
		switch {
		case c.masqueradeAll:
			out = append(out, c.marking())
		case c.pods.Known():
			out = append(out, append(c.match(false), c.marking()...))
		default:
			// While another mode has bound cluster IPs to the node, the kernel uses them as sources of
			// the node's own connections; no answer would come back.
			own := append(rule(c.loadAddress(h.source, 0)), nft.In(setClusterIPs, 0))
			out = append(out, append(own, c.marking()...))
		}
	case external:
		out = append(out, c.marking())
	case externalLocal:
		local := func(then ...nft.Expr) rule {
			return append(rule{nft.AddressType(unix.NFTA_FIB_F_SADDR, 0), nft.Equal(0, nft.HostNumber(unix.RTN_LOCAL))}, then...)
		}
		circuit := append(c.loadDestination(0), nft.Follow(setCircuit, 0))
		circuits := []rule{local(circuit...)}
		if c.pods.Known() {
			circuits = append(circuits, append(c.match(true), circuit...))
			out = append(out, circuits[1])
		}
		out = append(out, local(c.marking()...), circuits[0])
		if of.count == 0 { // otherwise a miss, see fixedChains, only means an endpoint of this node
			return append(append(out, circuits...), rule{nft.Give(nft.Drop())})
		}
	}
	return append(out, rule{nft.Give(nft.Goto(after.name()))})
}

// endpoints is the map of the endpoints that a chain chooses from.
func (c chain) endpoints() string {
	if c.local {
		return setLocal
	}
	return setEndpoints
}

// match are expressions that end a rule unless traffic is, or is not, that of pods.
func (c *config) match(is bool) []nft.Expr {
	compare := nft.NotEqual
	if is {
		compare = nft.Equal
	}
	if !c.pods.Source.IsValid() {
		name := []byte(c.pods.Interface)
		if !c.pods.Prefix { // the kernel pads a name with zeros
			name = append(name, make([]byte, unix.IFNAMSIZ-len(name))...)
		}
		return []nft.Expr{nft.Meta(unix.NFT_META_IIFNAME, 0), compare(0, name)}
	}
	source := c.pods.Source
	address := source.Addr().AsSlice()
	mask := maskOf(len(address), source.Bits())
	return []nft.Expr{
		nft.Network(c.header().source, uint32(len(address)), 0), //nolint:gosec // 4 or 16
		nft.Bits(0, mask, make([]byte, len(mask))), compare(0, address),
	}
}

func (c *config) table() nft.Table {
	if c.probe {
		return tableOf(c.family, TableName+"-probe")
	}
	return tableOf(c.family, TableName)
}

func tableOf(family dataplane.Family, name string) nft.Table {
	if family == dataplane.IPv6 {
		return nft.Table{Family: unix.NFPROTO_IPV6, Name: name}
	}
	return nft.Table{Family: unix.NFPROTO_IPV4, Name: name}
}

// marking marks packets that are to be masqueraded.
func (c *config) marking() rule {
	return rule{
		nft.Meta(unix.NFT_META_MARK, 0), nft.Bits(0, nft.HostNumber(^c.mark), nft.HostNumber(c.mark)), nft.SetMeta(unix.NFT_META_MARK, 0),
	}
}

// dnat sends the connection to the endpoint in the first registers.
func (c *config) dnat() nft.Expr { return nft.DNAT(c.table().Family, 0, c.header().registers()) }

func (c *config) loadAddress(offset uint32, to nft.Register) []nft.Expr {
	return []nft.Expr{nft.Network(offset, c.header().length, to)}
}

// loadDestination loads what a packet is sent to, from a register on.
func (c *config) loadDestination(to nft.Register) []nft.Expr {
	h := c.header()
	n := h.registers()
	return []nft.Expr{nft.Network(h.destination, h.length, to), nft.Meta(unix.NFT_META_L4PROTO, to+n), nft.Transport(2, 2, to+n+1)}
}

// loadOriginal loads what the client has sent to, from a register on.
func (c *config) loadOriginal(to nft.Register) []nft.Expr {
	n := c.header().registers()
	destination := uint32(unix.NFT_CT_DST_IP)
	if c.family == dataplane.IPv6 {
		destination = unix.NFT_CT_DST_IP6
	}
	return []nft.Expr{nft.Original(destination, to), nft.Meta(unix.NFT_META_L4PROTO, to+n), nft.Original(unix.NFT_CT_PROTO_DST, to+n+1)}
}

// indexed is a destination's key with the index of an endpoint.
func indexed(k []byte, index int) []byte {
	return binary.NativeEndian.AppendUint32(slices.Clone(k), uint32(index)) //nolint:gosec // few
}

// indexBytes are those of the index in such a key.
const indexBytes = 4

// splitIndex separates the index from a key.
func splitIndex(k []byte) (to []byte, index int) {
	at := len(k) - indexBytes
	return k[:at], int(binary.NativeEndian.Uint32(k[at:]))
}

// addLayout adds the table with all that does not depend on Services, and numbered sets.
func (c *config) addLayout(b *nft.Batch, numbered numberedSets) {
	t := c.table()
	b.AddTable(t, tableComment, false)
	for _, s := range c.sets() {
		b.AddSet(t, s)
	}
	for _, s := range slices.SortedFunc(maps.Keys(numbered), numberedSet.compare) { // messages are identified by their order
		b.AddSet(t, c.numbered(s))
	}
	for _, chain := range c.fixedChains(numbered) {
		b.AddChain(t, chain.name, chain.hook)
		for _, r := range chain.rules {
			b.AddRule(t, chain.name, "", r...)
		}
	}
}

// addChain adds a shared chain, and first those to which it leads, unless the table has them.
func (c *config) addChain(b *nft.Batch, of chain, has map[chain]struct{}) {
	if _, found := has[of]; found || of == (chain{}) || of == (chain{treatment: reject}) { // which is a fixed one
		return
	}
	has[of] = struct{}{}
	for _, next := range of.next() {
		c.addChain(b, next, has)
	}
	t := c.table()
	b.AddChain(t, of.name(), nil)
	b.FlushChain(t, of.name()) // there may be one that nothing has used
	for _, r := range c.rules(of) {
		b.AddRule(t, of.name(), "", r...)
	}
}

// addProbe adds, under another name, a table with everything that Services may need, and a failure, so
// that the kernel discards it.
func (c *config) addProbe(b *nft.Batch) {
	of := *c
	of.probe = true
	of.addLayout(b, numberedSets{{affinePrefix, 60}: {}, {rangesPrefix, 24}: {}})
	has := map[chain]struct{}{}
	of.addChain(b, chain{treatment: reject, limited: true}, has)
	for _, treats := range []treatment{cluster, external, externalLocal} {
		of.addChain(b, chain{treatment: treats, limited: true, local: treats == externalLocal, affine: true, count: 1}, has)
	}
	of.addFailure(b)
}

// addFailure adds a message that fails.
func (c *config) addFailure(b *nft.Batch) {
	b.DeleteTable(nft.Table{Family: c.table().Family, Name: TableName + "-none"})
}

package nftablesmodel

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
)

// maxFlows bounds the ways that random numbers open for one packet.
const maxFlows = 1 << 17

// States of connections.
const (
	fresh   = "NEW"
	invalid = "INVALID"
)

// Numbers of the kernel.
const (
	statusSNAT = 1 << 4
	statusDNAT = 1 << 5
)

var (
	protocols  = map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}
	states     = map[string]uint32{invalid: 1 << 0, "ESTABLISHED": 1 << 1, "RELATED": 1 << 2, fresh: 1 << 3}
	stateBits  = map[uint32]string{1 << 0: "invalid", 1 << 1: "established", 1 << 2: "related", 1 << 3: "new"}
	statusBits = map[uint32]string{statusSNAT: "snat", statusDNAT: "dnat"}
)

// flow is a packet on its way, with one of the ways that chance may take.
type flow struct {
	packet      kernelmodel.Packet
	original    netip.AddrPort // where it was sent to
	mark        uint32
	translated  bool // a rule chose the destination
	moved       bool // and it was another one: the kernel's status DNAT
	masqueraded bool
	ended       kernelmodel.Fate // Rejected or Dropped
	accepted    bool             // by a rule of type filter
	share       float64
	learned     []learned
	path        []kernelmodel.Step

	registers [registers]byte
	table     string // of the rule, for steps
	target    string // what the rule's last expression does, for steps
	// destinationDone and sourceDone: translation is decided for the connection.
	destinationDone, sourceDone bool
}

// learned is an element that packets add to a dynamic map.
type learned struct {
	nft.Element
	set     *set
	timeout time.Duration
}

func (f *flow) clone() *flow {
	c := *f
	c.learned, c.path = slices.Clone(f.learned), slices.Clone(f.path)
	return &c
}

// translate gives the packet another destination.
func (f *flow) translate(to netip.AddrPort) {
	f.translated, f.moved, f.target = true, to != f.packet.Destination, kernelmodel.Translate
	f.packet.Destination = to
}

// walk leads packets through chains.
type walk struct {
	*Kernel
	flows int
	err   error
}

func (w *walk) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// ownAddress is an address of the node of the same family as another one.
func (k *Kernel) ownAddress(other netip.Addr, loopback bool) netip.Addr {
	if !loopback {
		for _, a := range k.addresses {
			if a.BitLen() == other.BitLen() {
				return a
			}
		}
	}
	if other.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// Trace returns the possible outcomes of a packet, sorted by endpoint. It does not change the
// kernel.
func (k *Kernel) Trace(p kernelmodel.Packet) ([]kernelmodel.Outcome, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	p.State = cmp.Or(p.State, fresh)
	if _, known := states[p.State]; !known {
		return nil, fmt.Errorf("no packet that can be traced: %+v", p)
	}
	w := &walk{Kernel: k}
	live := []*flow{{packet: p, original: p.Destination, share: 1}}
	all := func(*flow) bool { return true }
	stays := func(f *flow) bool { return k.Local(f.packet.Destination.Addr()) }
	goes := func(f *flow) bool { return !stays(f) }
	if p.In == "" {
		live = w.hook(unix.NF_INET_LOCAL_OUT, all, live)
		live = w.hook(unix.NF_INET_POST_ROUTING, all, live)
		for _, f := range live {
			if stays(f) {
				f.packet.In = "lo"
			}
		}
		live = w.hook(unix.NF_INET_PRE_ROUTING, stays, live)
	} else {
		live = w.hook(unix.NF_INET_PRE_ROUTING, all, live)
		live = w.hook(unix.NF_INET_FORWARD, goes, live)
		live = w.hook(unix.NF_INET_POST_ROUTING, goes, live)
	}
	live = w.hook(unix.NF_INET_LOCAL_IN, stays, live)
	if w.err != nil {
		return nil, w.err
	}
	out := make([]kernelmodel.Outcome, 0, len(live))
	for _, f := range live {
		out = append(out, f.outcome())
	}
	return kernelmodel.Merge(out), nil
}

func (f *flow) outcome() kernelmodel.Outcome {
	o := kernelmodel.Outcome{Fate: f.ended, Masqueraded: f.masqueraded, Share: f.share, Path: f.path, Effects: f.learned}
	switch {
	case f.ended != "":
		o.Masqueraded = false
	case f.translated:
		o.Fate, o.Endpoint = kernelmodel.Delivered, f.packet.Destination
	case f.accepted:
		o.Fate = kernelmodel.Accepted
	default:
		o.Fate = kernelmodel.Passed
	}
	return o
}

// Remember lets the kernel take a new connection with this outcome: dynamic maps learn it.
func (k *Kernel) Remember(o kernelmodel.Outcome) {
	list, _ := o.Effects.([]learned) // nothing if it is not ours
	for _, l := range list {
		k.learn(l)
	}
}

// hook leads packets in progress that meet a condition through the base chains of a hook.
func (w *walk) hook(number uint32, condition func(*flow) bool, live []*flow) []*flow {
	if len(live) == 0 {
		return nil // Trace fails
	}
	for _, base := range w.bases(number, live[0].packet.Source.Is4()) {
		live = w.base(base.table, base.chain, condition, live)
	}
	for _, f := range live {
		if f.ended != "" || !condition(f) {
			continue
		}
		switch number {
		case unix.NF_INET_PRE_ROUTING, unix.NF_INET_LOCAL_OUT:
			f.destinationDone = true
		case unix.NF_INET_POST_ROUTING, unix.NF_INET_LOCAL_IN:
			f.sourceDone = true
		}
	}
	return live
}

type base struct {
	*table
	*chain
}

// bases are the base chains of a hook in the order in which packets meet them.
func (k *Kernel) bases(number uint32, four bool) []base {
	family := byte(unix.NFPROTO_IPV6)
	if four {
		family = unix.NFPROTO_IPV4
	}
	var out []base
	for _, t := range k.tables {
		for _, c := range t.chains {
			if t.Family == family && c.Hook != nil && c.Hook.Number == number {
				out = append(out, base{t, c})
			}
		}
	}
	// All chains of type nat are met at one priority, in the order of their own.
	priority := func(b base) int32 {
		switch {
		case b.Hook.Type != "nat":
			return b.Hook.Priority
		case number == unix.NF_INET_PRE_ROUTING || number == unix.NF_INET_LOCAL_OUT:
			return -100
		}
		return 100
	}
	slices.SortFunc(out, func(a, b base) int {
		// Of the same priority, the last one that was made comes first.
		return cmp.Or(cmp.Compare(priority(a), priority(b)), cmp.Compare(a.Hook.Priority, b.Hook.Priority), cmp.Compare(b.handle, a.handle))
	})
	return out
}

// base leads packets through a base chain.
func (w *walk) base(t *table, c *chain, condition func(*flow) bool, live []*flow) []*flow {
	var out []*flow
	for _, f := range live {
		if f.ended != "" || !condition(f) || c.Hook.Type == "nat" && !f.needsNAT(c.Hook.Number) {
			out = append(out, f)
			continue
		}
		f.table = t.name()
		for _, e := range w.chain(t, c, 0, f, 0) {
			verdict := e.verdict
			if e.continues() {
				verdict.Code = c.policy
			} else if verdict.Code == unix.NF_ACCEPT && c.Hook.Type != "nat" {
				e.accepted = true
			}
			if verdict.Code == unix.NF_DROP && e.ended == "" {
				e.ended = kernelmodel.Dropped
			}
			out = append(out, e.flow)
		}
	}
	return out
}

func (t *table) name() string {
	if t.Family == unix.NFPROTO_IPV6 {
		return "ip6 " + t.Name
	}
	return "ip " + t.Name
}

// needsNAT reports whether the kernel asks for the translation of a packet: once for a connection.
func (f *flow) needsNAT(hook uint32) bool {
	if f.packet.State != fresh {
		return false
	}
	if hook == unix.NF_INET_PRE_ROUTING || hook == unix.NF_INET_LOCAL_OUT {
		return !f.destinationDone && !f.translated
	}
	return !f.sourceDone && !f.masqueraded
}

// end is a packet with a verdict: at the end of a rule, or of a chain.
type end struct {
	*flow
	verdict nft.Verdict
}

// chain leads a packet through a chain from a rule on. Verdicts of the result are goesOn, or final.
func (w *walk) chain(t *table, c *chain, from int, f *flow, depth int) []end {
	if depth > maxDepth {
		w.fail("chain %s: jumps in a circle", c.Name)
		return nil
	}
	for i := from; i < len(c.rules); i++ {
		ends := w.rule(c, c.rules[i], 0, f)
		if len(ends) == 1 && ends[0].continues() {
			f = ends[0].flow // the usual case, without recursion
			continue
		}
		var out []end
		for _, e := range ends {
			switch {
			case e.continues():
				out = append(out, w.chain(t, c, i+1, e.flow, depth)...)
			case e.verdict.Code == unix.NFT_RETURN:
				out = append(out, end{e.flow, goesOn})
			case e.verdict.Code == unix.NFT_GOTO:
				out = append(out, w.chain(t, t.chains[e.verdict.Chain], 0, e.flow, depth+1)...)
			case e.verdict.Code == unix.NFT_JUMP:
				for _, back := range w.chain(t, t.chains[e.verdict.Chain], 0, e.flow, depth+1) {
					if back.continues() {
						out = append(out, w.chain(t, c, i+1, back.flow, depth)...)
					} else {
						out = append(out, back)
					}
				}
			default:
				out = append(out, e)
			}
		}
		return out
	}
	return []end{{f, goesOn}}
}

func (e *end) continues() bool {
	return e.verdict.Code == unix.NFT_CONTINUE || e.verdict.Code == unix.NFT_BREAK
}

// rule leads a packet through a rule from an expression on.
func (w *walk) rule(c *chain, r *rule, from int, f *flow) []end {
	f.target = ""
	verdict := goesOn
	for i := from; i < len(r.steps) && verdict.Code == unix.NFT_CONTINUE; i++ {
		s := &r.steps[i]
		switch {
		case s.modulus == 0:
			verdict = s.run(w, f)
		case w.Random != nil:
			binary.NativeEndian.PutUint32(f.registers[s.random:], s.offset+w.Random(s.modulus))
		default:
			return w.all(c, r, i, f)
		}
	}
	if verdict.Code == unix.NFT_BREAK {
		return []end{{f, verdict}}
	}
	met := kernelmodel.Step{Kind: kernelmodel.NFTablesRule, Table: f.table, Chain: c.Name, Rule: r.text, Target: f.target}
	switch {
	case f.target == kernelmodel.Translate:
		met.To = f.packet.Destination
	case f.ended == kernelmodel.Rejected:
		met.Target = kernelmodel.Reject
	case verdict.Chain != "":
		met.Target = verdict.Chain
	case verdict.Code == unix.NF_DROP:
		met.Target = kernelmodel.Drop
	case verdict.Code == unix.NFT_RETURN:
		met.Target = kernelmodel.Return
	case verdict.Code == unix.NF_ACCEPT && f.target == "":
		met.Target = kernelmodel.Accept
	}
	f.path = append(f.path, met)
	return []end{{f, verdict}}
}

// all follows all random numbers that an expression may give.
func (w *walk) all(c *chain, r *rule, at int, f *flow) []end {
	s := &r.steps[at]
	if w.flows += int(s.modulus); w.flows > maxFlows {
		w.fail("chain %s: more than %d random numbers", c.Name, maxFlows)
		return nil
	}
	var out []end
	for n := range s.modulus {
		one := f
		if s.modulus > 1 {
			one = f.clone()
			one.share /= float64(s.modulus)
		}
		binary.NativeEndian.PutUint32(one.registers[s.random:], s.offset+n)
		out = append(out, w.rule(c, r, at+1, one)...)
	}
	return out
}

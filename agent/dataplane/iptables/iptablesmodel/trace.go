package iptablesmodel

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
)

// Trace returns the possible outcomes of a packet, sorted by endpoint. It does not change the
// kernel.
func (k *Kernel) Trace(p kernelmodel.Packet) ([]kernelmodel.Outcome, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	if n := len(k.chains[chainID{"nat", "INPUT"}]); n > 0 {
		return nil, fmt.Errorf("%d rules in INPUT of nat, which is not modeled", n)
	}
	p.State = cmp.Or(p.State, "NEW")
	w := &walk{Kernel: k}
	live := []*flow{{packet: p, share: 1}}
	if p.In == "" {
		live = w.nat("OUTPUT", live)
		live = w.balance(live)
		live = w.filter("OUTPUT", live)
		live = w.nat("POSTROUTING", live)
		// Of what it balances, what goes to the node itself stays on its way.
		stays := func(f *flow) bool { return k.staysHere(f) && (!f.virtual.IsValid() || k.Local(f.virtual.Addr())) }
		live = w.where(live, stays, func(f []*flow) []*flow {
			for _, x := range f {
				x.packet.In = "lo"
			}
			// Translation is decided once for a connection: nat is not asked again.
			return w.filter("INPUT", f)
		})
	} else {
		live = w.nat("PREROUTING", live)
		forwarded := func(f *flow) bool { return k.goesOn(f) && !f.virtual.IsValid() }
		live = w.where(live, k.staysHere, func(f []*flow) []*flow { return w.balance(w.filter("INPUT", f)) })
		live = w.where(live, forwarded, func(f []*flow) []*flow { return w.nat("POSTROUTING", w.filter("FORWARD", f)) })
		// What it balances leaves as the node's own packets, for which OUTPUT sees no
		// interface by which they entered. POSTROUTING still does.
		live = w.where(live, func(f *flow) bool { return k.goesOn(f) && f.virtual.IsValid() },
			func(f []*flow) []*flow {
				for _, x := range f {
					x.packet.In = ""
				}
				f = w.filter("OUTPUT", f)
				for _, x := range f {
					x.packet.In = p.In
				}
				return w.nat("POSTROUTING", f)
			})
	}
	if w.err != nil {
		return nil, w.err
	}
	return merge(live), nil
}

func (k *Kernel) staysHere(f *flow) bool { return k.Local(f.packet.Destination.Addr()) }
func (k *Kernel) goesOn(f *flow) bool    { return !k.staysHere(f) }

// Remember lets the kernel take a new connection with this outcome: lists of
// recent clients are brought up to date.
func (k *Kernel) Remember(o kernelmodel.Outcome) {
	entered, _ := o.Effects.([]seenKey) // nothing if it is not ours
	for _, key := range entered {
		k.seen[key] = k.now
	}
}

// Pass lets time pass.
func (k *Kernel) Pass(d time.Duration) { k.now += d }

// seenKey is an entry in a list of recent clients.
type seenKey struct {
	list   string
	client netip.Addr
}

// flow is a packet on its way, with one of the ways that chance may take.
type flow struct {
	packet   kernelmodel.Packet
	mark     uint32
	dnat     bool           // a rule chose the destination
	moved    bool           // and it was another one: the kernel's state DNAT
	virtual  netip.AddrPort // destination before the Balancer translated it
	masq     bool
	ended    kernelmodel.Fate // Rejected or Dropped
	accepted bool
	share    float64
	entered  []seenKey
	path     []kernelmodel.Step
}

func (f *flow) clone() *flow {
	c := *f
	c.entered, c.path = slices.Clone(f.entered), slices.Clone(f.path)
	return &c
}

// walk leads packets through chains.
type walk struct {
	*Kernel
	err error
}

func (w *walk) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// where applies step to the flows in progress that meet the condition.
func (w *walk) where(live []*flow, condition func(*flow) bool, step func([]*flow) []*flow) []*flow {
	var chosen, others []*flow
	for _, f := range live {
		if f.ended == "" && condition(f) {
			chosen = append(chosen, f)
		} else {
			others = append(others, f)
		}
	}
	return append(others, step(chosen)...)
}

// nat enters a built-in chain of nat, which only new connections do.
func (w *walk) nat(chain string, live []*flow) []*flow {
	return w.where(live, func(f *flow) bool { return f.packet.State == "NEW" }, func(f []*flow) []*flow {
		return w.enter(chainID{"nat", chain}, f)
	})
}

func (w *walk) filter(chain string, live []*flow) []*flow {
	return w.where(live, func(*flow) bool { return true }, func(f []*flow) []*flow {
		return w.enter(chainID{"filter", chain}, f)
	})
}

func (w *walk) enter(id chainID, flows []*flow) []*flow {
	var out []*flow
	for _, f := range flows {
		for _, e := range w.chain(id, 0, f, 0) {
			out = append(out, e.flow)
		}
	}
	return out
}

// end is a flow at the end of a chain. decided: the rest of the table is not for
// it.
type end struct {
	*flow
	decided bool
}

const maxDepth = 16

// chain leads a flow through the rules of a chain from one of them on.
func (w *walk) chain(id chainID, from int, f *flow, depth int) []end {
	if depth > maxDepth {
		w.fail("chain %s: jumps in a circle", id.name)
		return nil
	}
	rules := w.chains[id]
	var out []end
	for i := from; i < len(rules); i++ {
		r := rules[i]
		if !w.matches(r, f) {
			continue
		}
		taken := f
		if p, ok := r.matches["--probability"]; ok && p.probability < 1 {
			taken = f.clone()
			taken.share *= p.probability
			f.share *= 1 - p.probability
		}
		if _, ok := r.matches["--set"]; ok {
			taken.entered = append(taken.entered, seenKey{r.matches["--name"].value, taken.packet.Source})
		}
		taken.path = append(taken.path, kernelmodel.Step{Table: id.table, Chain: id.name, Rule: r.text, Target: r.leadsTo(), To: r.endpoint})
		if r.verdict == goBack {
			out = append(out, end{flow: taken})
			if taken == f {
				return out
			}
			continue
		}
		ends := w.act(id, r, taken, depth)
		if taken == f && len(ends) == 1 && !ends[0].decided {
			f = ends[0].flow // the usual case, without recursion
			continue
		}
		for _, e := range ends {
			if e.decided {
				out = append(out, e)
			} else {
				out = append(out, w.chain(id, i+1, e.flow, depth)...)
			}
		}
		if taken == f {
			return out
		}
	}
	return append(out, end{flow: f})
}

// act applies the target of a rule.
func (w *walk) act(id chainID, r *rule, f *flow, depth int) []end {
	decided := func(allowed string) []end {
		if id.table != allowed {
			w.fail("%s of %s: target not allowed here: %s", id.name, id.table, r.text)
		}
		return []end{{flow: f, decided: true}}
	}
	switch r.verdict {
	case none:
	case jump:
		return w.chain(chainID{id.table, r.target}, 0, f, depth+1)
	case setMark:
		f.mark = f.mark&r.and ^ r.xor
	case accept:
		f.accepted = f.accepted || id.table == "filter"
		return []end{{flow: f, decided: true}}
	case drop:
		f.ended = kernelmodel.Dropped
		return decided("filter")
	case reject:
		f.ended = kernelmodel.Rejected
		return decided("filter")
	case translate:
		if r.endpoint.Addr().BitLen() != f.packet.Source.BitLen() {
			w.fail("endpoint of the other family: %s", r.text)
		}
		f.dnat, f.moved = true, r.endpoint != f.packet.Destination
		f.packet.Destination = r.endpoint
		return decided("nat")
	case masquerade:
		f.masq = true
		if len(w.addresses) > 0 {
			f.packet.Source = w.addresses[0]
		}
		return decided("nat")
	default:
		w.fail("unsupported rule: %s", r.text)
	}
	return []end{{flow: f}}
}

func (w *walk) matches(r *rule, f *flow) bool {
	for option, m := range r.matches {
		if !w.holds(option, &m, r, f) {
			return false
		}
	}
	return true
}

func (w *walk) holds(option string, m *match, r *rule, f *flow) bool {
	p := &f.packet
	var is bool
	switch option {
	case "-p":
		is = m.value == p.Protocol
	case "-s":
		is = m.prefix.Contains(p.Source)
	case "-d":
		is = m.prefix.Contains(p.Destination.Addr())
	case "-i":
		prefix, any := strings.CutSuffix(m.value, "+")
		is = p.In == m.value || any && strings.HasPrefix(p.In, prefix) // "+": even none
	case "--dport":
		is = uint64(p.Destination.Port()) == m.number
	case "--ctstate":
		is = slices.Contains(m.list, p.State) || f.moved && slices.Contains(m.list, "DNAT")
	case "--mark":
		is = uint64(f.mark&m.mask) == m.number
	case "--src-type":
		is = w.Local(p.Source)
	case "--dst-type":
		is = w.Local(p.Destination.Addr())
	case "--rcheck":
		key := seenKey{r.matches["--name"].value, p.Source}
		last, ok := w.seen[key]
		seconds, limited := r.matches["--seconds"]
		is = slices.Contains(f.entered, key) || ok && (!limited || w.now-last <= time.Duration(seconds.number)*time.Second)
	case "--match-set":
		is = w.inSet(m, f)
	case "--physdev-is-in":
		is = p.Bridged
	case "--vaddr", "--vproto", "--vport":
		if !f.virtual.IsValid() {
			return false // negated or not
		}
		is = f.isVirtual(option, m)
	case "--set", "--name", "--seconds", "--reap", "--rsource", "--mask", "--comment", "--mode", "--probability":
		return !m.not // handled elsewhere, or without effect
	default:
		w.fail("unsupported option: %s in %s", option, r.text)
	}
	return is != m.not
}

// merge joins flows that end alike, by the same virtual server or by none.
func merge(flows []*flow) []kernelmodel.Outcome {
	var out []kernelmodel.Outcome
	for _, f := range flows {
		o := kernelmodel.Outcome{Fate: f.ended, Masqueraded: f.masq, Share: f.share, Path: f.path, Effects: f.entered, Virtual: f.virtual}
		switch {
		case f.ended != "":
			o.Masqueraded = false
		case f.dnat || f.virtual.IsValid():
			o.Fate, o.Endpoint = kernelmodel.Delivered, f.packet.Destination
		case f.accepted:
			o.Fate = kernelmodel.Accepted
		default:
			o.Fate = kernelmodel.Passed
		}
		out = append(out, o)
	}
	return kernelmodel.Merge(out)
}

package nftablesmodel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// Verdicts of packets.
var (
	accepted = nft.Verdict{Code: unix.NF_ACCEPT}
	dropped  = nft.Verdict{Code: unix.NF_DROP}
)

// setOf is the set that an attribute names.
func (p *parser) setOf(kind uint16) (*set, error) {
	if s := p.table.sets[nlattr.Text(p.a[kind])]; s != nil {
		return s, nil
	}
	return nil, unix.ENOENT
}

func (p *parser) immediate() error {
	verdict, _ := nft.ParseData(p.a[unix.NFTA_IMMEDIATE_DATA])
	if !verdict.IsSet() || p.number(unix.NFTA_IMMEDIATE_DREG) != unix.NFT_REG_VERDICT {
		return unknownError{"immediate values"}
	}
	if err := p.table.check(verdict); err != nil {
		return err
	}
	p.words = append(p.words, verdictText(verdict))
	p.steps = append(p.steps, step{verdict: verdict, run: func(*walk, *flow) nft.Verdict { return verdict }})
	return nil
}

// learn adds to a dynamic map, or renews what it has.
func (p *parser) learn() error {
	s, err := p.setOf(unix.NFTA_DYNSET_SET_NAME)
	if err != nil {
		return err
	}
	timeout := p.a[unix.NFTA_DYNSET_TIMEOUT]
	switch {
	case p.number(unix.NFTA_DYNSET_OP) != unix.NFT_DYNSET_OP_UPDATE:
		return unknownError{"dynset without update"}
	case !s.is(unix.NFT_SET_EVAL) || timeout != nil && !s.is(unix.NFT_SET_TIMEOUT):
		return unix.EOPNOTSUPP
	case len(timeout) != 8 || !s.is(unix.NFT_SET_MAP) || s.verdicts():
		return unknownError{"dynset without timeout and data"}
	}
	expires := time.Duration(binary.BigEndian.Uint64(timeout)) * time.Millisecond                    //nolint:gosec // checked
	if expires <= 0 || expires/time.Millisecond != time.Duration(binary.BigEndian.Uint64(timeout)) { //nolint:gosec // compared
		return unix.ERANGE
	}
	key, err := p.from(unix.NFTA_DYNSET_SREG_KEY, int(s.KeyLength))
	if err != nil {
		return err
	}
	data, err := p.from(unix.NFTA_DYNSET_SREG_DATA, int(s.DataLength))
	if err != nil {
		return err
	}
	p.words = append(p.words, fmt.Sprintf("update @%s { %s timeout %s : %s }", s.Name, p.joined(key, s.key), durationText(expires), p.joined(data, s.data)))
	p.steps = append(p.steps, step{set: s, run: func(_ *walk, f *flow) nft.Verdict {
		f.learned = append(f.learned, learned{set: s, timeout: expires, Element: nft.Element{
			Key: bytes.Clone(f.registers[key : key+int(s.KeyLength)]), Data: bytes.Clone(f.registers[data : data+int(s.DataLength)]),
		}})
		return goesOn
	}})
	return nil
}

// lookup looks a key up: in a set, in a map of data, or in a map of verdicts.
func (p *parser) lookup() error {
	s, err := p.setOf(unix.NFTA_LOOKUP_SET)
	if err != nil {
		return err
	}
	length := int(s.KeyLength)
	key, err := p.from(unix.NFTA_LOOKUP_SREG, length)
	if err != nil {
		return err
	}
	flags := p.number(unix.NFTA_LOOKUP_FLAGS)
	inverted := flags == unix.NFT_LOOKUP_F_INV
	keyText := p.joined(key, s.key)
	find := func(w *walk, f *flow) *element {
		k := f.registers[key : key+length]
		e := w.find(s, k)
		for i := len(f.learned) - 1; e == nil && i >= 0; i-- {
			if l := f.learned[i]; l.set == s && bytes.Equal(l.Key, k) {
				e = &element{Element: l.Element}
			}
		}
		f.path = append(f.path, s.looked(f.table, k, e))
		return e
	}
	switch {
	case flags&^unix.NFT_LOOKUP_F_INV != 0, inverted && p.has(unix.NFTA_LOOKUP_DREG):
		return unix.EINVAL
	case !p.has(unix.NFTA_LOOKUP_DREG):
		operator := " "
		if inverted {
			operator = " != "
		}
		p.words = append(p.words, keyText+operator+"@"+s.Name)
		p.steps = append(p.steps, step{set: s, run: func(w *walk, f *flow) nft.Verdict {
			if (find(w, f) != nil) == inverted {
				return breaks
			}
			return goesOn
		}})
		return nil
	case !s.is(unix.NFT_SET_MAP), s.verdicts() != (p.number(unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT):
		return unix.EINVAL
	case s.verdicts():
		p.words = append(p.words, keyText+" vmap @"+s.Name)
		p.steps = append(p.steps, step{set: s, run: func(w *walk, f *flow) nft.Verdict {
			if e := find(w, f); e != nil {
				return e.Verdict
			}
			return breaks
		}})
		return nil
	}
	size := int(s.DataLength)
	to, err := p.to(unix.NFTA_LOOKUP_DREG, size, symbol{name: keyText + " map @" + s.Name})
	if err != nil {
		return err
	}
	p.steps = append(p.steps, step{set: s, run: func(w *walk, f *flow) nft.Verdict {
		e := find(w, f)
		if e == nil {
			return breaks
		}
		clear(f.registers[to : to+(size+3)&^3])
		copy(f.registers[to:to+size], e.Data)
		return goesOn
	}})
	return nil
}

const (
	hookPrerouting  = 1 << unix.NF_INET_PRE_ROUTING
	hookInput       = 1 << unix.NF_INET_LOCAL_IN
	hookForward     = 1 << unix.NF_INET_FORWARD
	hookOutput      = 1 << unix.NF_INET_LOCAL_OUT
	hookPostrouting = 1 << unix.NF_INET_POST_ROUTING
)

// translate sends a connection to the address and the port in registers.
func (p *parser) translate() error {
	size := int(p.addressLength())
	switch {
	case p.number(unix.NFTA_NAT_TYPE) != unix.NFT_NAT_DNAT:
		return unknownError{"nat but for dnat"}
	case p.number(unix.NFTA_NAT_FAMILY) != uint32(p.table.Family):
		return unix.EOPNOTSUPP
	case !p.has(unix.NFTA_NAT_REG_ADDR_MIN):
		return unknownError{"dnat without an address"}
	}
	address, err := p.from(unix.NFTA_NAT_REG_ADDR_MIN, size)
	if err != nil {
		return err
	}
	port := -1
	if p.has(unix.NFTA_NAT_REG_PROTO_MIN) {
		if port, err = p.from(unix.NFTA_NAT_REG_PROTO_MIN, 2); err != nil {
			return err
		}
	}
	p.words = append(p.words, "dnat "+p.family()+" to "+p.symbols[address/4].name)
	p.steps = append(p.steps, step{nat: true, hooks: hookPrerouting | hookOutput, run: func(_ *walk, f *flow) nft.Verdict {
		to, _ := netip.AddrFromSlice(f.registers[address : address+size])
		number := f.packet.Destination.Port()
		if port >= 0 {
			number = binary.BigEndian.Uint16(f.registers[port:])
		}
		f.translate(netip.AddrPortFrom(to, number))
		return accepted
	}})
	return nil
}

// redirect sends a connection to the node itself.
func (p *parser) redirect() error {
	port := -1
	if p.has(unix.NFTA_REDIR_REG_PROTO_MIN) {
		var err error
		if port, err = p.from(unix.NFTA_REDIR_REG_PROTO_MIN, 2); err != nil {
			return err
		}
	}
	p.words = append(p.words, "redirect")
	p.steps = append(p.steps, step{nat: true, hooks: hookPrerouting | hookOutput, run: func(w *walk, f *flow) nft.Verdict {
		to := w.ownAddress(f.packet.Source, f.packet.In == "")
		number := f.packet.Destination.Port()
		if port >= 0 {
			number = binary.BigEndian.Uint16(f.registers[port:])
		}
		f.translate(netip.AddrPortFrom(to, number))
		return accepted
	}})
	return nil
}

func (p *parser) masquerade() error {
	name := "masquerade"
	if p.number(unix.NFTA_MASQ_FLAGS)&unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY != 0 {
		name += " fully-random"
	}
	p.words = append(p.words, name)
	p.steps = append(p.steps, step{nat: true, hooks: hookPostrouting, run: func(w *walk, f *flow) nft.Verdict {
		f.masqueraded, f.target = true, kernelmodel.Masquerade
		f.packet.Source = w.ownAddress(f.packet.Source, false)
		return accepted
	}})
	return nil
}

func (p *parser) reject() error {
	kind := p.number(unix.NFTA_REJECT_TYPE)
	code := p.a[unix.NFTA_REJECT_ICMP_CODE]
	unreachable := byte(3) // ICMP's code of an unreachable port
	if p.six {
		unreachable = 4
	}
	switch {
	case kind == unix.NFT_REJECT_TCP_RST:
		p.words = append(p.words, "reject with tcp reset")
	case len(code) != 1:
		return unix.EINVAL
	case kind != unix.NFT_REJECT_ICMP_UNREACH || code[0] != unreachable:
		return unknownError{"reject but for an unreachable port"}
	default:
		p.words = append(p.words, "reject")
	}
	p.steps = append(p.steps, step{hooks: hookPrerouting | hookInput | hookForward | hookOutput, run: func(_ *walk, f *flow) nft.Verdict {
		if kind == unix.NFT_REJECT_TCP_RST && f.packet.Protocol != "tcp" {
			return dropped // without an answer
		}
		f.ended = kernelmodel.Rejected
		return dropped
	}})
	return nil
}

package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
)

const (
	// maxRuns bounds the ways by chance on which a packet is followed, and maxSteps the rules on one.
	maxRuns  = 100_000
	maxSteps = 10_000
	// priorityDNAT is where destinations are translated.
	priorityDNAT = -100
)

func (t *Table) addressLength() int {
	if t.family == dataplane.IPv6 {
		return 16
	}
	return 4
}

// Outcome predicts what becomes of a packet whose source the table allows.
func (t *Table) Outcome(ctx context.Context, p Packet) (Outcome, error) {
	var all Outcome
	c := &chance{}
	for runs := 1; ; runs++ {
		if err := ctx.Err(); err != nil {
			return Outcome{}, fmt.Errorf("predict what becomes of packets to %s: %w", p.Destination, err)
		}
		dataplane.Progress(ctx)
		r := t.newRun(p, c)
		if err := r.pass(); err != nil {
			return Outcome{}, fmt.Errorf("predict what becomes of packets to %s: %w", p.Destination, err)
		}
		one := r.outcome()
		switch {
		case all.Fate == "":
			all = one
		case all.Fate != one.Fate, all.Masquerade != one.Masquerade, all.AffinitySeconds != one.AffinitySeconds:
			return Outcome{Fate: Varies}, nil
		default:
			for e, share := range one.Shares {
				all.Shares[e] += share
			}
		}
		if !c.next() {
			return all, nil
		}
		if runs == maxRuns {
			return Outcome{}, fmt.Errorf("the rules for packets to %s are %w: these have more than %d ways", p.Destination, ErrTooLarge, maxRuns)
		}
	}
}

// Allows reports whether the table lets packets of a source reach a destination that it restricts.
func (t *Table) Allows(p Packet) (bool, error) {
	r := t.newRun(p, &chance{})
	if err := r.restrictions(); err != nil {
		return false, fmt.Errorf("predict whether packets to %s are dropped: %w", p.Destination, err)
	}
	return r.fate == "", nil
}

// MasqueradesItself reports whether an endpoint that is its own client through a Service sees an
// address of the node.
func (t *Table) MasqueradesItself(e Destination) (bool, error) {
	r := t.newRun(Packet{Destination: e, Source: e.Addr(), Interface: "veth"}, &chance{})
	r.translated = true
	if err := r.hook(unix.NF_INET_POST_ROUTING, func(int32) bool { return true }); err != nil {
		return false, fmt.Errorf("predict whether %s is masqueraded: %w", e, err)
	}
	return r.masqueraded, nil
}

// chance enumerates what random numbers may be.
type chance struct {
	picks, limits []uint32
	at            int
}

// pick returns a number below a limit.
func (c *chance) pick(limit uint32) uint32 {
	if c.at == len(c.picks) {
		c.picks, c.limits = append(c.picks, 0), append(c.limits, limit)
	}
	c.at++
	return c.picks[c.at-1]
}

// probability is that of all picks.
func (c *chance) probability() float64 {
	p := 1.0
	for _, limit := range c.limits[:c.at] {
		p /= float64(limit)
	}
	return p
}

// next advances to the next picks. It reports false if there are none.
func (c *chance) next() bool {
	c.picks, c.limits, c.at = c.picks[:c.at], c.limits[:c.at], 0
	for n := len(c.picks) - 1; n >= 0; n-- {
		if c.picks[n]++; c.picks[n] < c.limits[n] {
			return true
		}
		c.picks, c.limits = c.picks[:n], c.limits[:n]
	}
	return false
}

// run is a packet on its way.
type run struct {
	*Table
	*chance
	packet    Packet
	registers [registers * registerLength]byte
	mark      uint32
	steps     int
	// fate is empty while it is on its way.
	fate                    Fate
	translated, masqueraded bool
	affinity                int32
}

func (t *Table) newRun(p Packet, c *chance) *run { return &run{Table: t, chance: c, packet: p} }

func (r *run) outcome() Outcome {
	out := Outcome{Fate: r.fate, Masquerade: r.masqueraded, AffinitySeconds: r.affinity}
	switch {
	case r.fate != "":
		return Outcome{Fate: r.fate}
	case !r.translated:
		return Outcome{Fate: Ignored}
	}
	out.Fate, out.Shares = Translated, map[netip.AddrPort]float64{r.packet.AddrPort: r.probability()}
	return out
}

func (r *run) first() uint32 {
	if r.packet.Interface == "" {
		return unix.NF_INET_LOCAL_OUT
	}
	return unix.NF_INET_PRE_ROUTING
}

// restrictions passes the base chains before the destination is translated.
func (r *run) restrictions() error {
	return r.hook(r.first(), func(priority int32) bool { return priority < priorityDNAT })
}

// pass passes all base chains from where the destination is translated on.
func (r *run) pass() error {
	var errs []error
	errs = append(errs, r.hook(r.first(), func(priority int32) bool { return priority >= priorityDNAT }))
	switch {
	case r.packet.LocalDestination && !r.translated: // the node's own packets, too
		errs = append(errs, r.hook(unix.NF_INET_LOCAL_IN, func(int32) bool { return true }))
	case r.packet.Interface != "":
		errs = append(errs, r.hook(unix.NF_INET_FORWARD, func(int32) bool { return true }))
	}
	if !r.packet.LocalDestination || r.translated {
		errs = append(errs, r.hook(unix.NF_INET_POST_ROUTING, func(int32) bool { return true }))
	}
	return errors.Join(errs...)
}

// hook passes the base chains of a hook with some priorities.
func (r *run) hook(number uint32, of func(priority int32) bool) error {
	for _, c := range r.hooks {
		if r.fate != "" || c.Hook.Number != number || !of(c.Hook.Priority) {
			continue
		}
		if _, err := r.chain(c.Name); err != nil {
			return err
		}
	}
	return nil
}

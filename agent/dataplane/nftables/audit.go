package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/kubeproxy"
)

// auditFormer compares the table of kube-proxy with plans, by what both do with packets. It reports
// false if there is none, or if our table precedes it.
func (d *Dataplane) auditFormer(ctx context.Context, c *config, plans map[dataplane.ServiceName]*servicePlan) ([]dataplane.Finding, bool, error) {
	if found, _, err := d.kernel.HasTable(c.table()); err != nil || found {
		return nil, false, err
	}
	table, err := d.former(ctx)
	if err != nil || table == nil {
		return nil, false, err
	}
	addresses, err := d.interfaces()
	if err != nil {
		return nil, false, err
	}
	a := &audit{config: c, table: table, clients: c.clients(addresses)}
	for _, own := range addresses {
		if d.family.Of(own) && !own.IsLoopback() {
			a.own = append(a.own, own)
		}
	}
	if err = a.compare(ctx, plans); errors.Is(err, kubeproxy.ErrTooLarge) { // which a single Service may cause
		a.found(dataplane.ServiceName{}, err.Error()+"; the rest is not compared")
		err = nil
	}
	return a.findings, true, err
}

// former reads the table of kube-proxy; nil: there is none.
func (d *Dataplane) former(ctx context.Context) (*kubeproxy.Table, error) {
	var last error
	for range listTries {
		before, err := d.kernel.Generation()
		if err != nil {
			return nil, err
		}
		table, err := kubeproxy.Read(ctx, d.kernel, tableOf(d.family, kubeproxy.TableName), d.family)
		if err != nil {
			if last = err; errors.Is(err, nft.ErrInterrupted) || errors.Is(err, unix.ENOENT) { // a set has gone since it was found
				continue
			}
			return nil, err
		}
		after, err := d.kernel.Generation()
		if err != nil || after == before {
			return table, err
		}
		last = nft.ErrInterrupted
	}
	return nil, last
}

// audit is one comparison.
type audit struct {
	*config
	table    *kubeproxy.Table
	clients  []client
	own      []netip.Addr // of the node
	findings []dataplane.Finding
}

// client is where a packet comes from.
type client struct {
	name       string
	source     netip.Addr
	from       string // interface
	pod, local bool
}

// clients are one of each kind that rules distinguish.
func (c *config) clients(own []netip.Addr) []client {
	elsewhere := c.elsewhere(own)
	const otherInterface = "other0"
	var out []client
	switch {
	case !c.pods.Known():
	case c.pods.Source.IsValid():
		out = append(out, client{name: "a pod", source: c.pods.Source.Masked().Addr(), from: otherInterface, pod: true})
	default:
		out = append(out, client{name: "a pod", source: elsewhere, from: c.pods.Interface, pod: true})
	}
	if c.nodeIP.IsValid() {
		out = append(out, client{name: "the node", source: c.nodeIP, local: true, pod: c.pods.Source.IsValid() && c.pods.Source.Contains(c.nodeIP)})
	}
	if elsewhere.IsValid() {
		out = append(out, client{name: "outside", source: elsewhere, from: otherInterface})
	}
	return out
}

// elsewhere is an address that is neither a pod's nor the node's; invalid if there is none.
func (c *config) elsewhere(own []netip.Addr) netip.Addr {
	for _, text := range []string{"203.0.113.253", "198.51.100.253", "192.0.2.253", "9.9.9.253", "2001:db8:ffff::fdfd", "2620:fe::fdfd", "fd00:ffff:ffff::fdfd"} {
		a := netip.MustParseAddr(text)
		if c.family.Of(a) && !slices.Contains(own, a) && (!c.pods.Source.IsValid() || !c.pods.Source.Contains(a)) {
			return a
		}
	}
	return netip.Addr{}
}

// expected is what becomes of packets from a client whose source is allowed.
func (c *config) expected(d *destination, from client) kubeproxy.Outcome {
	switch {
	case d.chain == (chain{}):
		return kubeproxy.Outcome{Fate: kubeproxy.Dropped}
	case d.chain.treatment == reject:
		return kubeproxy.Outcome{Fate: kubeproxy.Rejected}
	}
	endpoints, masquerade := d.endpoints, false
	if d.chain.local {
		endpoints = d.local
	}
	switch d.chain.treatment {
	case cluster:
		masquerade = c.masqueradeAll || c.pods.Known() && !from.pod
	case external:
		masquerade = true
	case externalLocal:
		circuit := d.circuit != (chain{})
		masquerade = from.local && !(from.pod && circuit)
		if circuit && (from.local || from.pod) {
			endpoints = d.endpoints
		}
	}
	if len(endpoints) == 0 {
		return kubeproxy.Outcome{Fate: kubeproxy.Dropped}
	}
	return kubeproxy.Outcome{Fate: kubeproxy.Translated, Shares: kubeproxy.Evenly(endpoints), Masquerade: masquerade, AffinitySeconds: d.affinity}
}

// compare compares all Services, and what kube-proxy serves besides.
func (a *audit) compare(ctx context.Context, plans map[dataplane.ServiceName]*servicePlan) error {
	desired := map[kubeproxy.Destination]struct{}{}
	for _, name := range slices.SortedFunc(maps.Keys(plans), dataplane.ServiceName.Compare) {
		plan := plans[name]
		if plan == nil {
			continue
		}
		for i := range plan.destinations {
			d := &plan.destinations[i]
			desired[kubeproxy.Destination{AddrPort: d.AddrPort, Protocol: d.protocol}] = struct{}{}
			if err := a.destination(ctx, name, d); err != nil {
				return err
			}
		}
		if err := a.hairpin(plan); err != nil {
			return err
		}
	}
	for d, name := range a.table.Served(a.own) {
		if _, found := desired[d]; found {
			continue
		}
		desired[d] = struct{}{} // it may be in several maps
		if _, err := a.packets(ctx, name, d, func(client) kubeproxy.Outcome { return kubeproxy.Outcome{Fate: kubeproxy.Ignored} }); err != nil {
			return err
		}
	}
	return nil
}

// packets compares what becomes of packets to a destination, and reports whether any are translated.
func (a *audit) packets(ctx context.Context, name dataplane.ServiceName, d kubeproxy.Destination, expected func(client) kubeproxy.Outcome) (translated bool, err error) {
	for _, from := range a.clients {
		want := expected(from)
		got, err := a.table.Outcome(ctx, a.packet(d, from))
		if err != nil {
			return false, err
		}
		translated = translated || want.Fate == kubeproxy.Translated
		if !got.Equal(want) && !a.sameAsUnused(d, got, want) {
			a.found(name, fmt.Sprintf("packets from %s to %s are %s, desired: %s", from.name, d, got, want))
			return translated, nil
		}
	}
	return translated, nil
}

// sameAsUnused reports whether a destination that is not desired is rejected as the unused port of a
// cluster IP is.
func (a *audit) sameAsUnused(d kubeproxy.Destination, got, want kubeproxy.Outcome) bool {
	return want.Fate == kubeproxy.Ignored && got.Fate == kubeproxy.Rejected && !slices.Contains(a.own, d.Addr())
}

func (a *audit) packet(d kubeproxy.Destination, from client) kubeproxy.Packet {
	return kubeproxy.Packet{
		Destination: d, Source: from.source, Interface: from.from, LocalSource: from.local, LocalDestination: slices.Contains(a.own, d.Addr()),
	}
}

func (a *audit) found(name dataplane.ServiceName, text string) {
	if name != (dataplane.ServiceName{}) {
		text = name.String() + ": " + text
	}
	a.findings = append(a.findings, dataplane.Finding{Service: name, Key: text, Text: text})
}

// destination compares one destination.
func (a *audit) destination(ctx context.Context, name dataplane.ServiceName, d *destination) error {
	of := kubeproxy.Destination{AddrPort: d.AddrPort, Protocol: d.protocol}
	translated, err := a.packets(ctx, name, of, func(from client) kubeproxy.Outcome { return a.expected(d, from) })
	if err != nil || !translated {
		return err
	}
	sources := a.table.Boundaries(of)
	for _, r := range d.ranges {
		first, last := r.Masked().Addr(), lastOf(r)
		sources = append(sources, first, first.Prev(), last, last.Next())
	}
	for _, from := range a.clients {
		sources = append(sources, from.source)
	}
	for _, source := range sources {
		if !a.family.Of(source) {
			continue
		}
		want := len(d.ranges) == 0 || slices.ContainsFunc(d.ranges, func(r netip.Prefix) bool { return r.Contains(source) })
		got, err := a.table.Allows(a.packet(of, client{source: source, from: "other0"}))
		if err != nil {
			return err
		}
		if got != want {
			a.found(name, fmt.Sprintf("packets from %s to %s are allowed: %t, desired: %t", source, of, got, want))
			return nil
		}
	}
	return nil
}

// hairpin compares what becomes of endpoints that are their own clients.
func (a *audit) hairpin(plan *servicePlan) error {
	seen := map[kubeproxy.Destination]struct{}{}
	for i := range plan.destinations {
		d := &plan.destinations[i]
		for _, e := range slices.Concat(d.endpoints, d.local) {
			of := kubeproxy.Destination{AddrPort: e, Protocol: d.protocol}
			if _, found := seen[of]; found || !slices.Contains(plan.hairpin, e.Addr()) {
				continue
			}
			seen[of] = struct{}{}
			masquerades, err := a.table.MasqueradesItself(of)
			if err != nil {
				return err
			}
			if !masquerades {
				a.found(plan.name, fmt.Sprintf("packets of endpoint %s to itself are not masqueraded", of))
			}
		}
	}
	return nil
}

// lastOf is the last address of a range.
func lastOf(r netip.Prefix) netip.Addr {
	b := r.Addr().AsSlice()
	for i, m := range maskOf(len(b), r.Bits()) {
		b[i] |= ^m
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

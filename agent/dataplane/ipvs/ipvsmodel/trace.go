package ipvsmodel

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablesmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// packets answers what package iptablesmodel asks on a packet's way.
type packets struct{ k *Kernel }

var _ iptablesmodel.Balancer = packets{}

// template is the real server of a persistent client.
type template struct {
	real    netip.AddrPort
	expires time.Duration
}

// Name implements iptablesmodel.Balancer.
func (packets) Name() string { return "ipvs" }

// Bound implements iptablesmodel.Balancer.
func (p packets) Bound(a netip.Addr) bool {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	return p.k.bound[a] || p.k.yielded[a]
}

// HasSet implements iptablesmodel.Balancer.
func (p packets) HasSet(name string) bool {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	return p.k.sets[ipvs.SetName(name)] != nil
}

// InSet implements iptablesmodel.Balancer.
func (p packets) InSet(name string, directions []string, packet kernelmodel.Packet) (bool, error) {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	return p.k.inSet(name, directions, packet)
}

// Choose implements iptablesmodel.Balancer.
func (p packets) Choose(packet kernelmodel.Packet) ([]netip.AddrPort, bool) {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	s := p.k.servers[keyOf(packet)]
	if s == nil {
		return nil, false
	}
	return p.k.candidates(s, packet.Source), true
}

// hashing are the schedulers that choose by an address alone, among all real servers.
// A connection that gets one of weight 0 is rejected, as with mh where the real
// server had a weight before.
var hashing = []string{"sh", "dh"}

// candidates returns the real servers that a new connection of a client may get: the
// previous one of a persistent client, else all with weight, and the zero one if the
// scheduler may choose one without. One without weight retains its clients unless a
// sysctl changes that.
func (k *Kernel) candidates(s *server, client netip.Addr) []netip.AddrPort {
	if t, found := s.templates[client]; found && s.Flags&ipvs.FlagPersistent != 0 && k.now < t.expires {
		quiescent, _ := strconv.Atoi(k.sysctls["net/ipv4/vs/expire_quiescent_template"]) // none: 0
		if r := s.reals[t.real]; r != nil && (r.Weight > 0 || quiescent == 0) {
			return []netip.AddrPort{t.real}
		}
	}
	var out []netip.AddrPort
	for a, r := range s.reals {
		switch {
		case r.Weight > 0:
			out = append(out, a)
		case slices.Contains(hashing, s.Scheduler), s.Scheduler == "mh" && s.drained[a]:
			out = append(out, netip.AddrPort{})
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

func keyOf(p kernelmodel.Packet) ipvs.Key {
	return ipvs.Key{Addr: p.Destination.Addr(), Port: p.Destination.Port(), Protocol: v1alpha1.Protocol(strings.ToUpper(p.Protocol))}
}

// Connect sends the first packet of a connection and returns its outcome. Of several
// real servers it gets the next one, as with the scheduler rr. The real server then
// has one active connection more.
func (k *Kernel) Connect(p kernelmodel.Packet) (kernelmodel.Outcome, error) {
	outcomes, err := k.Tables.Trace(p)
	if err != nil {
		return kernelmodel.Outcome{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.servers[keyOf(p)]
	if s == nil || outcomes[0].Fate != kernelmodel.Delivered {
		if len(outcomes) > 1 {
			return kernelmodel.Outcome{}, fmt.Errorf("the rules have several outcomes for %+v", p)
		}
		return outcomes[0], nil
	}
	next := outcomes[0]
	for _, o := range outcomes { // sorted by endpoint
		if o.Endpoint.Compare(s.last) > 0 {
			next = o
			break
		}
	}
	s.last = next.Endpoint
	s.reals[next.Endpoint].Active++
	s.remember(p.Source, next.Endpoint, k.now)
	return next, nil
}

// Remember sets the real server that a client of a virtual server has got. The zero one
// means that it was rejected, which ends its persistence.
func (k *Kernel) Remember(key ipvs.Key, client netip.Addr, real netip.AddrPort) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.servers[key]; s != nil {
		s.remember(client, real, k.now)
	}
}

func (s *server) remember(client netip.Addr, real netip.AddrPort, now time.Duration) {
	switch {
	case s.Flags&ipvs.FlagPersistent == 0:
	case !real.IsValid():
		delete(s.templates, client)
	default:
		s.templates[client] = template{real, now + time.Duration(s.Timeout)*time.Second}
	}
}

// SetConnections sets the number of connections of a real server.
func (k *Kernel) SetConnections(key ipvs.Key, real netip.AddrPort, active, inactive int) error {
	return k.setReal(key, real, func(r *ipvs.Real) { r.Active, r.Inactive = active, inactive })
}

// SetForwarding sets the forwarding of a real server, as other programs may; 0 is
// masquerading. Packets are masqueraded nevertheless.
func (k *Kernel) SetForwarding(key ipvs.Key, real netip.AddrPort, forwarding uint32) error {
	return k.setReal(key, real, func(r *ipvs.Real) { r.Forwarding = forwarding })
}

func (k *Kernel) setReal(key ipvs.Key, real netip.AddrPort, set func(*ipvs.Real)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.servers[key]; s == nil || s.reals[real] == nil {
		return fmt.Errorf("no real server %s of %s", real, key)
	}
	set(k.servers[key].reals[real])
	return nil
}

// Pass lets time pass for persistent clients.
func (k *Kernel) Pass(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now += d
}

package ipvsmodel

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablesmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// packets is what package iptablesmodel asks the kernel on a packet's way.
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
func (p packets) InSet(name string, directions []string, packet iptablesmodel.Packet) (bool, error) {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	return p.k.inSet(name, directions, packet)
}

// Choose implements iptablesmodel.Balancer.
func (p packets) Choose(packet iptablesmodel.Packet) ([]netip.AddrPort, bool) {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	s := p.k.servers[keyOf(packet)]
	if s == nil {
		return nil, false
	}
	return p.k.candidates(s, packet.Source), true
}

// hashing are the schedulers that choose by an address alone, from all real servers.
// A connection that gets one of weight 0 is rejected.
var hashing = []string{"sh", "dh"}

// candidates are the real servers that a new connection of a client may get: that
// which it has got before, if it is persistent, else all that take new ones, and the
// zero one where the scheduler may choose one that does not. One without weight keeps
// its clients unless a sysctl says otherwise.
func (k *Kernel) candidates(s *server, client netip.Addr) []netip.AddrPort {
	if t, ok := s.templates[client]; ok && s.Flags&ipvs.FlagPersistent != 0 && k.now < t.expires {
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
		case slices.Contains(hashing, s.Scheduler):
			out = append(out, netip.AddrPort{})
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

func keyOf(p iptablesmodel.Packet) ipvs.Key {
	protocol := map[string]v1alpha1.Protocol{
		"tcp": v1alpha1.ProtocolTCP, "udp": v1alpha1.ProtocolUDP, "sctp": v1alpha1.ProtocolSCTP,
	}[p.Protocol]
	return ipvs.Key{Addr: p.Destination.Addr(), Port: p.Destination.Port(), Protocol: protocol}
}

// Connect lets the first packet of a connection through, and tells what became of
// it. Of several real servers it gets the next one after the last, as by the
// scheduler rr. The real server then has one active connection more.
func (k *Kernel) Connect(p iptablesmodel.Packet) (iptablesmodel.Outcome, error) {
	outcomes, err := k.Tables.Trace(p)
	if err != nil {
		return iptablesmodel.Outcome{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.servers[keyOf(p)]
	if s == nil || outcomes[0].Fate != iptablesmodel.Delivered {
		if len(outcomes) > 1 {
			return iptablesmodel.Outcome{}, fmt.Errorf("the rules leave it to chance what becomes of %+v", p)
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

// Remember says which real server of a virtual server a client has got; the zero one:
// it was rejected, and does not get back what it had before.
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

// SetConnections says how many connections a real server has.
func (k *Kernel) SetConnections(key ipvs.Key, real netip.AddrPort, active, inactive int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.servers[key]; s == nil || s.reals[real] == nil {
		return fmt.Errorf("no real server %s of %s", real, keyText(key))
	}
	r := k.servers[key].reals[real]
	r.Active, r.Inactive = active, inactive
	return nil
}

// SetForwarding gives a real server another forwarding than masquerading, as others
// may; 0 is masquerading. Packets go there as if by masquerading all the same.
func (k *Kernel) SetForwarding(key ipvs.Key, real netip.AddrPort, forwarding uint32) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.servers[key]; s == nil || s.reals[real] == nil {
		return fmt.Errorf("no real server %s of %s", real, keyText(key))
	}
	k.servers[key].reals[real].Forwarding = forwarding
	return nil
}

// Pass lets time pass for persistent clients.
func (k *Kernel) Pass(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now += d
}

// Server prints a virtual server with its real servers, human-readable and for tests
// to compare: "rr 0x1 10800 10.0.0.1:80 10.0.0.2:80=0 10.0.0.3:80/3", where flags
// and timeout stand if there are any, the weight if it is not 1, and the forwarding
// if it is not masquerading. Empty: there is none.
func (k *Kernel) Server(key ipvs.Key) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.servers[key]
	if s == nil {
		return ""
	}
	out := []string{s.Scheduler}
	if s.Flags != 0 {
		out = append(out, fmt.Sprintf("%#x", uint32(s.Flags)))
	}
	if s.Timeout != 0 {
		out = append(out, fmt.Sprint(s.Timeout))
	}
	for _, a := range slices.SortedFunc(maps.Keys(s.reals), netip.AddrPort.Compare) {
		text := a.String()
		if w := s.reals[a].Weight; w != 1 {
			text += fmt.Sprintf("=%d", w)
		}
		if f := s.reals[a].Forwarding; f != 0 {
			text += fmt.Sprintf("/%d", f)
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

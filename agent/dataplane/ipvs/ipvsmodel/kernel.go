// Package ipvsmodel is a model of a kernel with IPVS: virtual servers, the device
// kube-ipvs0, ipsets, connections, and what becomes of a packet that meets them
// between the rules of package iptablesmodel. It does what the kernel does and
// refuses what the kernel rejects, so that tests compare what the mode programs to
// what it is for.
package ipvsmodel

import (
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablesmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
)

// Kernel is that of one IP family of a node. Its fields are set before it is
// used; its methods may be called from several goroutines.
type Kernel struct {
	// Tables are those of iptables. Packets are traced there.
	Tables *iptablesmodel.Kernel
	// Lacks is why the node has no IPVS; nil: it has. It should wrap
	// dataplane.ErrUnsupported.
	Lacks error
	// Schedulers are those that it has.
	Schedulers []string
	// Refuse returns the error of a call that is to fail; nil: it does not. It is
	// called while the kernel is locked.
	Refuse func(Call) error

	family dataplane.Family

	mu        sync.Mutex
	calls     []Call
	servers   map[ipvs.Key]*server
	device    bool
	bound     map[netip.Addr]bool
	yielded   map[netip.Addr]bool
	sets      map[ipvs.SetName]*set
	timeouts  ipvs.Timeouts
	sysctls   map[string]string
	listeners map[chan ipvs.Event]struct{}
	now       time.Duration
}

var _ ipvs.Kernel = (*Kernel)(nil)

// server is a virtual server.
type server struct {
	ipvs.Server
	reals map[netip.AddrPort]*ipvs.Real
	last  netip.AddrPort // the real server that got the last connection
	// templates are the real servers of persistent clients.
	templates map[netip.Addr]template
}

// New makes the kernel of a node with the given addresses, which holds nothing.
func New(family dataplane.Family, addresses ...netip.Addr) *Kernel {
	k := &Kernel{
		Tables:     iptablesmodel.NewKernel(addresses...),
		Schedulers: []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh"},
		family:     family,
		servers:    map[ipvs.Key]*server{},
		bound:      map[netip.Addr]bool{},
		yielded:    map[netip.Addr]bool{},
		sets:       map[ipvs.SetName]*set{},
		timeouts:   ipvs.Timeouts{TCP: 900, TCPFin: 120, UDP: 300},
		listeners:  map[chan ipvs.Event]struct{}{},
		sysctls: map[string]string{
			"net/ipv4/vs/conntrack": "0", "net/ipv4/vs/conn_reuse_mode": "1", "net/ipv4/vs/expire_nodest_conn": "0",
			"net/ipv4/vs/expire_quiescent_template": "0", "net/ipv4/ip_forward": "0",
			"net/ipv4/conf/all/arp_ignore": "0", "net/ipv4/conf/all/arp_announce": "0", "kernel/osrelease": "6.1.0",
		},
	}
	k.Tables.Balancer = packets{k}
	return k
}

// Call is a call of one of the kernel's methods.
type Call struct {
	Method string
	// What is changed, as far as the method is about it.
	Key    ipvs.Key
	Server ipvs.Server
	Real   netip.AddrPort
	Weight int
	Addr   netip.Addr
	Sets   []ipvs.SetChange
	Name   string // of a scheduler, a sysctl or an ipset
}

// String names the method and what it was about, human-readable and for tests to
// compare.
func (c Call) String() string {
	parts := []string{c.Method}
	if c.Key.Addr.IsValid() {
		parts = append(parts, keyText(c.Key))
	}
	if c.Real.IsValid() {
		parts = append(parts, c.Real.String())
	}
	switch c.Method {
	case "AddServer", "ChangeServer":
		parts = append(parts, fmt.Sprintf("%s %#x %d", c.Server.Scheduler, uint32(c.Server.Flags), c.Server.Timeout))
	case "AddReal", "ChangeReal":
		parts = append(parts, fmt.Sprint(c.Weight))
	}
	if c.Addr.IsValid() {
		parts = append(parts, c.Addr.String())
	}
	for _, s := range c.Sets {
		for _, e := range s.Add {
			parts = append(parts, fmt.Sprintf("+%s %s", s.Name, e))
		}
		for _, e := range s.Remove {
			parts = append(parts, fmt.Sprintf("-%s %s", s.Name, e))
		}
	}
	if c.Name != "" {
		parts = append(parts, c.Name)
	}
	return strings.Join(parts, " ")
}

// reads are the methods that change nothing.
var reads = map[string]bool{
	"Open": true, "Servers": true, "Reals": true, "Timeouts": true, "Bound": true, "Addresses": true,
	"Sets": true, "Sysctl": true, "Count": true, "Probe": true,
}

// Calls returns the calls since the last Reset.
func (k *Kernel) Calls() []Call {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.calls)
}

// Writes returns those of the calls since the last Reset that change something,
// as text.
func (k *Kernel) Writes() []string {
	var out []string
	for _, c := range k.Calls() {
		if !reads[c.Method] {
			out = append(out, c.String())
		}
	}
	return out
}

// Messages is how many messages the calls since the last Reset would cost: one
// each, but one for each entry of an ipset, and none for Open.
func (k *Kernel) Messages() int {
	n := 0
	for _, c := range k.Calls() {
		switch c.Method {
		case "Open":
		case "ChangeSets":
			for _, s := range c.Sets {
				n += len(s.Add) + len(s.Remove)
			}
		default:
			n++
		}
	}
	return n
}

// Reset forgets the calls.
func (k *Kernel) Reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls = nil
}

// begin notes a call, with the kernel locked, and tells whether it is to fail.
func (k *Kernel) begin(c Call) error {
	k.calls = append(k.calls, c)
	if k.Lacks != nil {
		return k.Lacks
	}
	if k.Refuse != nil {
		return k.Refuse(c)
	}
	return nil
}

// Open implements ipvs.Kernel.
func (k *Kernel) Open() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.begin(Call{Method: "Open"})
}

// Probe implements ipvs.Kernel.
func (k *Kernel) Probe(scheduler string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "Probe", Name: scheduler}); err != nil {
		return err
	}
	return k.hasScheduler(scheduler)
}

func (k *Kernel) hasScheduler(name string) error {
	if !slices.Contains(k.Schedulers, name) {
		return &ipvs.SchedulerError{Scheduler: name}
	}
	return nil
}

// Servers implements ipvs.Kernel.
func (k *Kernel) Servers() (map[ipvs.Key]ipvs.Server, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "Servers"}); err != nil {
		return nil, err
	}
	out := make(map[ipvs.Key]ipvs.Server, len(k.servers))
	for key, s := range k.servers {
		out[key] = s.Server
	}
	return out, nil
}

// Reals implements ipvs.Kernel.
func (k *Kernel) Reals(key ipvs.Key) (map[netip.AddrPort]ipvs.Real, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "Reals", Key: key}); err != nil {
		return nil, err
	}
	out := map[netip.AddrPort]ipvs.Real{}
	if s := k.servers[key]; s != nil {
		for a, r := range s.reals {
			out[a] = *r
		}
	}
	return out, nil
}

// AddServer implements ipvs.Kernel.
func (k *Kernel) AddServer(key ipvs.Key, want ipvs.Server) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "AddServer", Key: key, Server: want}); err != nil {
		return err
	}
	if k.servers[key] != nil {
		return fmt.Errorf("virtual server %s: %w", keyText(key), fs.ErrExist)
	}
	if err := k.checkServer(key, want); err != nil {
		return err
	}
	k.servers[key] = &server{Server: want, reals: map[netip.AddrPort]*ipvs.Real{}, templates: map[netip.Addr]template{}}
	return nil
}

func (k *Kernel) checkServer(key ipvs.Key, want ipvs.Server) error {
	switch {
	case !k.family.Of(key.Addr) || key.Port == 0 || key.Protocol == "":
		return fmt.Errorf("virtual server %s: not one of %s", keyText(key), k.family)
	case (want.Timeout > 0) != (want.Flags&ipvs.FlagPersistent > 0):
		return fmt.Errorf("virtual server %s: timeout %d with flags %#x", keyText(key), want.Timeout, uint32(want.Flags))
	}
	return k.hasScheduler(want.Scheduler)
}

// ChangeServer implements ipvs.Kernel.
func (k *Kernel) ChangeServer(key ipvs.Key, want ipvs.Server) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "ChangeServer", Key: key, Server: want}); err != nil {
		return err
	}
	s := k.servers[key]
	if s == nil {
		return fmt.Errorf("virtual server %s: %w", keyText(key), fs.ErrNotExist)
	}
	if err := k.checkServer(key, want); err != nil {
		return err
	}
	s.Server = want
	return nil
}

// DeleteServer implements ipvs.Kernel.
func (k *Kernel) DeleteServer(key ipvs.Key) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "DeleteServer", Key: key}); err != nil {
		return err
	}
	delete(k.servers, key)
	return nil
}

// AddReal implements ipvs.Kernel.
func (k *Kernel) AddReal(key ipvs.Key, real netip.AddrPort, weight int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "AddReal", Key: key, Real: real, Weight: weight}); err != nil {
		return err
	}
	s := k.servers[key]
	switch {
	case s == nil:
		return fmt.Errorf("virtual server %s: %w", keyText(key), fs.ErrNotExist)
	case s.reals[real] != nil:
		return fmt.Errorf("real server %s of %s: %w", real, keyText(key), fs.ErrExist)
	case !k.family.Of(real.Addr()) || real.Port() == 0:
		return fmt.Errorf("real server %s of %s: not one of %s", real, keyText(key), k.family)
	}
	s.reals[real] = &ipvs.Real{Weight: weight}
	return nil
}

// ChangeReal implements ipvs.Kernel.
func (k *Kernel) ChangeReal(key ipvs.Key, real netip.AddrPort, weight int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "ChangeReal", Key: key, Real: real, Weight: weight}); err != nil {
		return err
	}
	if s := k.servers[key]; s == nil || s.reals[real] == nil {
		return fmt.Errorf("real server %s of %s: %w", real, keyText(key), fs.ErrNotExist)
	}
	r := k.servers[key].reals[real]
	r.Weight, r.Forwarding = weight, 0
	return nil
}

// DeleteReal implements ipvs.Kernel.
func (k *Kernel) DeleteReal(key ipvs.Key, real netip.AddrPort) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "DeleteReal", Key: key, Real: real}); err != nil {
		return err
	}
	if s := k.servers[key]; s != nil {
		delete(s.reals, real)
	}
	return nil
}

// Count implements ipvs.Kernel.
func (k *Kernel) Count() (int, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.servers), true
}

// Timeouts implements ipvs.Kernel.
func (k *Kernel) Timeouts() (ipvs.Timeouts, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.timeouts, k.begin(Call{Method: "Timeouts"})
}

// SetTimeouts implements ipvs.Kernel.
func (k *Kernel) SetTimeouts(t ipvs.Timeouts) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "SetTimeouts"}); err != nil {
		return err
	}
	for _, v := range []struct {
		to   *uint32
		from uint32
	}{{&k.timeouts.TCP, t.TCP}, {&k.timeouts.TCPFin, t.TCPFin}, {&k.timeouts.UDP, t.UDP}} {
		if v.from != 0 {
			*v.to = v.from
		}
	}
	return nil
}

// Sysctl implements ipvs.Kernel.
func (k *Kernel) Sysctl(name string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "Sysctl", Name: name}); err != nil {
		return "", err
	}
	value, ok := k.sysctls[name]
	if !ok {
		return "", fmt.Errorf("sysctl %s: %w", name, fs.ErrNotExist)
	}
	return value, nil
}

// SetSysctl implements ipvs.Kernel.
func (k *Kernel) SetSysctl(name, value string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sysctls[name] == value {
		return k.begin(Call{Method: "Sysctl", Name: name})
	}
	if err := k.begin(Call{Method: "SetSysctl", Name: name + "=" + value}); err != nil {
		return err
	}
	if _, ok := k.sysctls[name]; !ok {
		return fmt.Errorf("sysctl %s: %w", name, fs.ErrNotExist)
	}
	k.sysctls[name] = value
	return nil
}

// RemoveSysctl makes the kernel one that does not have a sysctl.
func (k *Kernel) RemoveSysctl(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.sysctls, name)
}

// keyText is a virtual server as an ipset's entry, human-readable.
func keyText(k ipvs.Key) string {
	return fmt.Sprintf("%s,%s:%d", k.Addr, strings.ToLower(string(k.Protocol)), k.Port)
}

// Keys lists the virtual servers as text, sorted.
func (k *Kernel) Keys() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []string
	for key := range maps.Keys(k.servers) {
		out = append(out, keyText(key))
	}
	slices.Sort(out)
	return out
}

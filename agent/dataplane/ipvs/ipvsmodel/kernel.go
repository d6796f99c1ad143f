package ipvsmodel

import (
	"cmp"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablesmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
)

// Kernel models one IP family of a node. Set its fields before use. Its methods are
// safe for concurrent use.
type Kernel struct {
	// Tables are the iptables tables, in which packets are traced.
	Tables *iptablesmodel.Kernel
	// Schedulers are the available IPVS schedulers.
	Schedulers []string
	// Hook, if not nil, sees each call, with the kernel locked. A call fails with the
	// error that it returns.
	Hook func(Call) error

	family dataplane.Family

	mu        sync.Mutex
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
	// drained are the real servers whose weight became 0, with which the scheduler mh
	// still reckons.
	drained map[netip.AddrPort]bool
	last    netip.AddrPort // the real server of the last connection
	// templates map persistent clients to real servers.
	templates map[netip.Addr]template
}

// New returns the empty kernel of a node with these addresses.
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

// Call is a call of one of the kernel's methods, with those arguments that it has.
type Call struct {
	Method string
	Key    ipvs.Key
	Server ipvs.Server
	Real   netip.AddrPort
	Weight int
	Addr   netip.Addr
	Sets   []ipvs.SetChange
	Name   string // of a scheduler, sysctl or ipset
}

// begin returns the error of a call that must fail. The kernel is locked.
func (k *Kernel) begin(c Call) error {
	if k.Hook == nil {
		return nil
	}
	return k.Hook(c)
}

// call runs f with the kernel locked, unless the call must fail.
func (k *Kernel) call(c Call, f func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(c); err != nil {
		return err
	}
	return f()
}

// Open implements ipvs.Kernel.
func (k *Kernel) Open() error {
	return k.call(Call{Method: "Open"}, func() error { return nil })
}

// Probe implements ipvs.Kernel.
func (k *Kernel) Probe(scheduler string) error {
	return k.call(Call{Method: "Probe", Name: scheduler}, func() error { return k.hasScheduler(scheduler) })
}

func (k *Kernel) hasScheduler(name string) error {
	if !slices.Contains(k.Schedulers, name) {
		return &ipvs.SchedulerError{Scheduler: name}
	}
	return nil
}

// Servers implements ipvs.Kernel.
func (k *Kernel) Servers() (map[ipvs.Key]ipvs.Server, error) {
	out := map[ipvs.Key]ipvs.Server{}
	err := k.call(Call{Method: "Servers"}, func() error {
		for key, s := range k.servers {
			out[key] = s.Server
		}
		return nil
	})
	return out, err
}

// Reals implements ipvs.Kernel.
func (k *Kernel) Reals(key ipvs.Key) (map[netip.AddrPort]ipvs.Real, error) {
	out := map[netip.AddrPort]ipvs.Real{}
	err := k.call(Call{Method: "Reals", Key: key}, func() error {
		if s := k.servers[key]; s != nil {
			for a, r := range s.reals {
				out[a] = *r
			}
		}
		return nil
	})
	return out, err
}

// AddServer implements ipvs.Kernel.
func (k *Kernel) AddServer(key ipvs.Key, want ipvs.Server) error {
	return k.call(Call{Method: "AddServer", Key: key, Server: want}, func() error {
		if k.servers[key] != nil {
			return fmt.Errorf("virtual server %s: %w", key, fs.ErrExist)
		}
		if err := k.checkServer(key, want); err != nil {
			return err
		}
		k.servers[key] = &server{Server: want, reals: map[netip.AddrPort]*ipvs.Real{}, drained: map[netip.AddrPort]bool{}, templates: map[netip.Addr]template{}}
		return nil
	})
}

func (k *Kernel) checkServer(key ipvs.Key, want ipvs.Server) error {
	switch {
	case !k.family.Of(key.Addr) || key.Port == 0 || key.Protocol == "":
		return fmt.Errorf("virtual server %s: not one of %s", key, k.family)
	case (want.Timeout > 0) != (want.Flags&ipvs.FlagPersistent > 0):
		return fmt.Errorf("virtual server %s: timeout %d with flags %#x", key, want.Timeout, uint32(want.Flags))
	}
	return k.hasScheduler(want.Scheduler)
}

// ChangeServer implements ipvs.Kernel.
func (k *Kernel) ChangeServer(key ipvs.Key, want ipvs.Server) error {
	return k.call(Call{Method: "ChangeServer", Key: key, Server: want}, func() error {
		s := k.servers[key]
		if s == nil {
			return fmt.Errorf("virtual server %s: %w", key, fs.ErrNotExist)
		}
		if err := k.checkServer(key, want); err != nil {
			return err
		}
		s.Server = want
		return nil
	})
}

// DeleteServer implements ipvs.Kernel.
func (k *Kernel) DeleteServer(key ipvs.Key) error {
	return k.call(Call{Method: "DeleteServer", Key: key}, func() error {
		delete(k.servers, key)
		return nil
	})
}

// AddReal implements ipvs.Kernel.
func (k *Kernel) AddReal(key ipvs.Key, real netip.AddrPort, weight int) error {
	return k.call(Call{Method: "AddReal", Key: key, Real: real, Weight: weight}, func() error {
		s := k.servers[key]
		switch {
		case s == nil:
			return fmt.Errorf("virtual server %s: %w", key, fs.ErrNotExist)
		case s.reals[real] != nil:
			return fmt.Errorf("real server %s of %s: %w", real, key, fs.ErrExist)
		case !k.family.Of(real.Addr()) || real.Port() == 0:
			return fmt.Errorf("real server %s of %s: not one of %s", real, key, k.family)
		}
		s.reals[real] = &ipvs.Real{Weight: weight}
		return nil
	})
}

// ChangeReal implements ipvs.Kernel.
func (k *Kernel) ChangeReal(key ipvs.Key, real netip.AddrPort, weight int) error {
	return k.call(Call{Method: "ChangeReal", Key: key, Real: real, Weight: weight}, func() error {
		s := k.servers[key]
		if s == nil || s.reals[real] == nil {
			return fmt.Errorf("real server %s of %s: %w", real, key, fs.ErrNotExist)
		}
		r := s.reals[real]
		s.drained[real] = weight == 0 && (r.Weight > 0 || s.drained[real])
		r.Weight, r.Forwarding = weight, 0
		return nil
	})
}

// DeleteReal implements ipvs.Kernel.
func (k *Kernel) DeleteReal(key ipvs.Key, real netip.AddrPort) error {
	return k.call(Call{Method: "DeleteReal", Key: key, Real: real}, func() error {
		if s := k.servers[key]; s != nil {
			delete(s.reals, real)
			delete(s.drained, real)
		}
		return nil
	})
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
	return k.call(Call{Method: "SetTimeouts"}, func() error {
		k.timeouts = ipvs.Timeouts{
			TCP: cmp.Or(t.TCP, k.timeouts.TCP), TCPFin: cmp.Or(t.TCPFin, k.timeouts.TCPFin), UDP: cmp.Or(t.UDP, k.timeouts.UDP),
		}
		return nil
	})
}

// Sysctl implements ipvs.Kernel.
func (k *Kernel) Sysctl(name string) (value string, err error) {
	err = k.call(Call{Method: "Sysctl", Name: name}, func() (err error) {
		value, err = k.sysctl(name)
		return err
	})
	return value, err
}

func (k *Kernel) sysctl(name string) (string, error) {
	value, found := k.sysctls[name]
	if !found {
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
	if _, err := k.sysctl(name); err != nil {
		return err
	}
	k.sysctls[name] = value
	return nil
}

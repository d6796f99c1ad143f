package ipvs

import (
	"fmt"
	"net/netip"
)

// Kernel reads and writes what one IP family of the node holds of IPVS, of the
// device kube-ipvs0 and of ipsets. It knows nothing of Services: it does what it
// is told. Package ipvsmodel has a model of one. Its methods are not called
// concurrently, but for Addresses, Count and Events.
type Kernel interface {
	// Open looks for what the other methods need. It costs nothing once it has
	// succeeded. Where the node lacks something the error wraps
	// dataplane.ErrUnsupported and says what it is and what to do; it is a
	// *NoIPVSError where that is IPVS itself.
	Open() error
	// Probe tells whether the kernel has IPVS for the family, and a scheduler, by
	// making a virtual server, reading it and deleting it: the library reports no
	// error where there is no IPVS. The error is one of Open, or a
	// *SchedulerError.
	Probe(scheduler string) error

	// Servers reads all virtual servers of the family, whoever made them, but for
	// those that go by a firewall mark, which nobody reaches by an address.
	Servers() (map[Key]Server, error)
	// Reals reads the real servers of one; none where it is missing.
	Reals(Key) (map[netip.AddrPort]Real, error)
	// AddServer makes a virtual server. The error wraps fs.ErrExist where there is
	// one, and is a *SchedulerError where its scheduler is missing.
	AddServer(Key, Server) error
	// ChangeServer changes a virtual server in place. The error wraps
	// fs.ErrNotExist where there is none, and is a *SchedulerError where its
	// scheduler is missing.
	ChangeServer(Key, Server) error
	// DeleteServer deletes a virtual server with its real servers. That there is
	// none is no error.
	DeleteServer(Key) error
	// AddReal gives a virtual server a real server that is reached by masquerading.
	// The error wraps fs.ErrExist where it has it, and fs.ErrNotExist where the
	// virtual server is missing.
	AddReal(k Key, real netip.AddrPort, weight int) error
	// ChangeReal sets the weight; the forwarding becomes masquerading. The error
	// wraps fs.ErrNotExist where there is none.
	ChangeReal(k Key, real netip.AddrPort, weight int) error
	// DeleteReal deletes a real server. That there is none is no error.
	DeleteReal(k Key, real netip.AddrPort) error
	// Count counts the virtual servers of the family, whoever made them; known is false
	// where the kernel does not report it. For IPv4 it costs next to nothing, for IPv6 as
	// much as half of Servers, and misses some if others are deleted meanwhile. It may
	// be called beside the other methods.
	Count() (n int, known bool)

	// Timeouts reads how long connections are remembered; SetTimeouts changes
	// those that are not 0.
	Timeouts() (Timeouts, error)
	SetTimeouts(Timeouts) error

	// Bound reads the addresses of kube-ipvs0, but for those that the kernel gives
	// by itself; exists is false where the device is missing.
	Bound() (addrs []netip.Addr, exists bool, err error)
	// CreateDevice makes kube-ipvs0, which is never set up; it may exist.
	CreateDevice() error
	// DeleteDevice deletes it, unless it has addresses of the other family, which
	// shares it; it may be missing.
	DeleteDevice() error
	// Bind puts an address on the device; it may be there. The error wraps
	// fs.ErrNotExist where the device is missing. The kernel makes the route to an
	// IPv6 address a moment later.
	Bind(netip.Addr) error
	// Unbind takes an address off the device; address and device may be missing.
	Unbind(netip.Addr) error
	// Yield takes an address off kube-ipvs0 while the node goes on taking packets to
	// it for its own: connections that are held go on, but new ones of the node
	// itself get source instead of it.
	Yield(a, source netip.Addr) error
	// Reclaim ends that for all addresses of the family but some.
	Reclaim(but []netip.Addr) error
	// Addresses reads the addresses of all other interfaces, loopback and
	// link-local ones too.
	Addresses() ([]netip.Addr, error)
	// Events tells of changes of addresses of the family and of the end of
	// kube-ipvs0, whoever made them, from now on until done is closed, or earlier if
	// the kernel has more to tell than it keeps. Then the channel is closed; it must
	// be read until that. It may be called beside the other methods.
	Events(done <-chan struct{}) (<-chan Event, error)

	// Sets reads those of the named ipsets that exist.
	Sets([]SetName) (map[SetName][]Entry, error)
	// ChangeSets changes ipsets: all that is added, in order, comes before all
	// that is removed. An entry to add may be there, one to remove may be missing,
	// and a set with Create may exist. An error that is about one set is a
	// *SetError.
	ChangeSets([]SetChange) error
	// DeleteSets deletes ipsets; they may be missing.
	DeleteSets([]SetName) error

	// Sysctl reads a sysctl such as net/ipv4/vs/conntrack; SetSysctl writes it if
	// it differs. The error wraps fs.ErrNotExist where the kernel has none of that
	// name.
	Sysctl(name string) (string, error)
	SetSysctl(name, value string) error
}

// Event is a change of the node's interfaces.
type Event struct {
	// Device: it is about kube-ipvs0, else about another interface.
	Device bool
	// Addr is what has been added or removed; the zero one: kube-ipvs0 itself has
	// been removed.
	Addr    netip.Addr
	Removed bool
}

// Timeouts are how long IPVS remembers connections, in seconds; 0: not given.
type Timeouts struct{ TCP, TCPFin, UDP uint32 }

// SchedulerError says that the kernel has IPVS, but not this scheduler.
type SchedulerError struct{ Scheduler string }

// Error says what to do, human-readable.
func (e *SchedulerError) Error() string {
	return "the kernel has no IPVS scheduler " + e.Scheduler + ": load its module (modprobe ip_vs_" + e.Scheduler + ") on the node, or choose another one"
}

// NoIPVSError says that the kernel has no IPVS for the family, so that there are no
// virtual servers either.
type NoIPVSError struct{ Err error }

// Error says what to do, human-readable.
func (e *NoIPVSError) Error() string { return e.Err.Error() }

// Unwrap returns an error that wraps dataplane.ErrUnsupported.
func (e *NoIPVSError) Unwrap() error { return e.Err }

// SetError says that an ipset is not as it should be, or cannot be.
type SetError struct {
	Set SetName
	// Entry is the entry that it is about; empty: it is about the whole set.
	Entry Entry
	Err   error
}

// Error names the set, human-readable.
func (e *SetError) Error() string {
	if e.Entry == "" {
		return fmt.Sprintf("ipset %s: %v", e.Set, e.Err)
	}
	return fmt.Sprintf("ipset %s, entry %s: %v", e.Set, e.Entry, e.Err)
}

// Unwrap returns the reason.
func (e *SetError) Unwrap() error { return e.Err }

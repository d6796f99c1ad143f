package ipvs

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// deviceName is the device to which addresses of Services are bound, which makes them local.
const deviceName = "kube-ipvs0"

// Key identifies a virtual server.
type Key struct {
	Addr     netip.Addr
	Port     uint16
	Protocol v1alpha1.Protocol
}

// String returns it as in 10.0.0.1:80/TCP.
func (k Key) String() string {
	return netip.AddrPortFrom(k.Addr, k.Port).String() + "/" + string(k.Protocol)
}

// Compare orders by address, port and protocol.
func (k Key) Compare(o Key) int {
	if c := k.Addr.Compare(o.Addr); c != 0 {
		return c
	}
	if c := int(k.Port) - int(o.Port); c != 0 {
		return c
	}
	return strings.Compare(string(k.Protocol), string(o.Protocol))
}

// Server is a virtual server without its real servers.
type Server struct {
	// Scheduler selects real servers, by the kernel's name.
	Scheduler string
	Flags     Flags
	// Timeout is how long a client stays with its real server, in seconds; 0 without
	// FlagPersistent.
	Timeout uint32
}

// Flags are the kernel's flags of a virtual server that we set.
type Flags uint32

// Flags, as in the kernel's ip_vs.h.
const (
	// FlagPersistent: a client stays with its real server.
	FlagPersistent Flags = 0x1
	// FlagSourcePort: the scheduler mh hashes the source port too.
	FlagSourcePort Flags = 0x10
)

// Real is a real server in the kernel.
type Real struct {
	// Weight is 0 if the real server gets no new connections.
	Weight int
	// Active and Inactive count its connections.
	Active, Inactive int
	// Forwarding is the kernel's method. Ours is 0, masquerading.
	Forwarding uint32
}

// connections is the number of connections in any state.
func (r Real) connections() int { return r.Active + r.Inactive }

// Kernel reads and writes IPVS, the device kube-ipvs0 and ipsets in one IP family of the
// node. It knows no Services. Package ipvsmodel has a model of it. Its methods are not
// called concurrently, except Addresses, Count and Events.
type Kernel interface {
	// Open checks for what the other methods need. It costs nothing once it has
	// succeeded. If the node lacks something, the error wraps dataplane.ErrUnsupported
	// and explains what to do; it is a *NoIPVSError if IPVS itself is missing.
	Open() error
	// Probe checks whether the kernel has IPVS for the family, and a scheduler, by
	// creating, reading and deleting a virtual server: without IPVS the library
	// reports no error. The error is one of Open, or a *SchedulerError.
	Probe(scheduler string) error

	// Servers reads all virtual servers of the family, ours or not, except those with
	// a firewall mark, which have no address.
	Servers() (map[Key]Server, error)
	// Reals reads the real servers of a virtual server; none if that is missing.
	Reals(Key) (map[netip.AddrPort]Real, error)
	// AddServer adds a virtual server. The error wraps fs.ErrExist if it exists, and is
	// a *SchedulerError if its scheduler is missing.
	AddServer(Key, Server) error
	// ChangeServer changes a virtual server in place. The error wraps fs.ErrNotExist if
	// it is missing, and is a *SchedulerError if its scheduler is missing.
	ChangeServer(Key, Server) error
	// DeleteServer deletes a virtual server with its real servers. It may be missing.
	DeleteServer(Key) error
	// AddReal adds a masqueraded real server. The error wraps fs.ErrExist if it exists,
	// and fs.ErrNotExist if the virtual server is missing.
	AddReal(k Key, real netip.AddrPort, weight int) error
	// ChangeReal sets the weight, and the forwarding to masquerading. The error wraps
	// fs.ErrNotExist if it is missing.
	ChangeReal(k Key, real netip.AddrPort, weight int) error
	// DeleteReal deletes a real server. It may be missing.
	DeleteReal(k Key, real netip.AddrPort) error
	// Count counts the virtual servers of the family, ours or not; known is false if
	// the kernel does not report it. It is cheap for IPv4. For IPv6 it costs half as
	// much as Servers, and misses some if others are deleted meanwhile.
	Count() (n int, known bool)

	// Timeouts reads how long IPVS remembers connections; SetTimeouts changes those
	// that are not 0.
	Timeouts() (Timeouts, error)
	SetTimeouts(Timeouts) error

	// Bound reads the addresses of kube-ipvs0, except those that the kernel adds
	// itself; exists is false if the device is missing.
	Bound() (addrs []netip.Addr, exists bool, err error)
	// CreateDevice creates kube-ipvs0, which stays down; it may exist.
	CreateDevice() error
	// DeleteDevice deletes it, unless it has addresses of the other family, which
	// shares it; it may be missing.
	DeleteDevice() error
	// Bind adds an address to the device; it may be there. The error wraps
	// fs.ErrNotExist if the device is missing. The kernel adds the route to an IPv6
	// address a moment later.
	Bind(netip.Addr) error
	// Unbind removes an address from the device; address and device may be missing.
	Unbind(netip.Addr) error
	// Yield removes an address from kube-ipvs0, but leaves it local: existing
	// connections continue, and new ones of the node itself have source instead of it.
	Yield(a, source netip.Addr) error
	// Reclaim undoes Yield for all addresses of the family except some.
	Reclaim(except []netip.Addr) error
	// Addresses reads the addresses of all other interfaces, including loopback and
	// link-local ones.
	Addresses() ([]netip.Addr, error)
	// Events reports changes of addresses of the family and the deletion of kube-ipvs0,
	// by any program, until done is closed, or earlier if the kernel's buffer overflows.
	// Then the channel is closed; it must be read until then.
	Events(done <-chan struct{}) (<-chan Event, error)

	// Sets reads those of the named ipsets that exist.
	Sets([]SetName) (map[SetName][]Entry, error)
	// ChangeSets changes ipsets: it adds everything, in order, before it removes
	// anything. An entry to add may be there, one to remove may be missing, and a set
	// with Create may exist. An error about one set is a *SetError.
	ChangeSets([]SetChange) error
	// DeleteSets deletes ipsets; they may be missing.
	DeleteSets([]SetName) error

	// Sysctl reads a sysctl such as net/ipv4/vs/conntrack; SetSysctl writes it if it
	// differs. The error wraps fs.ErrNotExist if the kernel does not have it.
	Sysctl(name string) (string, error)
	SetSysctl(name, value string) error
}

// Event is a change of the node's interfaces.
type Event struct {
	// Device: it is about kube-ipvs0, otherwise about another interface.
	Device bool
	// Addr was added or removed. If it is invalid, kube-ipvs0 itself was removed.
	Addr    netip.Addr
	Removed bool
}

// Timeouts are how long IPVS remembers connections, in seconds; 0: not set.
type Timeouts struct{ TCP, TCPFin, UDP uint32 }

// SchedulerError means that the kernel has IPVS, but not this scheduler.
type SchedulerError struct{ Scheduler string }

// Error explains what to do, human-readable.
func (e *SchedulerError) Error() string {
	return "the kernel has no IPVS scheduler " + e.Scheduler + ": load its module (modprobe ip_vs_" + e.Scheduler + ") on the node, or choose another one"
}

// NoIPVSError means that the kernel has no IPVS for the family, and so no virtual servers.
type NoIPVSError struct{ Err error }

// Error explains what to do, human-readable.
func (e *NoIPVSError) Error() string { return e.Err.Error() }

// Unwrap returns an error that wraps dataplane.ErrUnsupported.
func (e *NoIPVSError) Unwrap() error { return e.Err }

// SetError is an error about an ipset.
type SetError struct {
	Set SetName
	// Entry is empty if the error is about the whole set.
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

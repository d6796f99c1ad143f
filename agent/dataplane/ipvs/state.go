package ipvs

import (
	"net/netip"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Key names a virtual server.
type Key struct {
	Addr     netip.Addr
	Port     uint16
	Protocol v1alpha1.Protocol
}

// String returns it as in 10.0.0.1:80/TCP.
func (k Key) String() string {
	return netip.AddrPortFrom(k.Addr, k.Port).String() + "/" + string(k.Protocol)
}

// Server is a virtual server without its real servers.
type Server struct {
	// Scheduler is the kernel's name of what picks a real server.
	Scheduler string
	Flags     Flags
	// Timeout is how long a client keeps its real server, in seconds; 0 without
	// FlagPersistent.
	Timeout uint32
}

// Flags are the kernel's flags of a virtual server that we set.
type Flags uint32

// Flags, as in the kernel's ip_vs.h.
const (
	// FlagPersistent: a client keeps its real server.
	FlagPersistent Flags = 0x1
	// FlagSourcePort: the scheduler mh hashes the source port too.
	FlagSourcePort Flags = 0x10
)

// Real is a real server as the kernel has it.
type Real struct {
	// Weight is 0 where the real server gets no new connections.
	Weight int
	// Active and Inactive count the connections to it.
	Active, Inactive int
	// Forwarding is the kernel's method, 0 for masquerading, which is ours.
	Forwarding uint32
}

// SetName is the name of an ipset, as it stands in the kernel.
type SetName string

// Entry is an entry of an ipset, as the ipset program prints it:
// "10.0.0.1,tcp:80", "10.0.0.1,tcp:80,10.1.0.0/16", "10.0.0.1" or "30000".
type Entry string

// SetType is the kernel's type of an ipset.
type SetType string

// Types of our ipsets.
const (
	HashIP        SetType = "hash:ip"
	HashIPPort    SetType = "hash:ip,port"
	HashIPPortIP  SetType = "hash:ip,port,ip"
	HashIPPortNet SetType = "hash:ip,port,net"
	BitmapPort    SetType = "bitmap:port"
)

// SetChange is what has to change in one ipset.
type SetChange struct {
	Name SetName
	Type SetType
	// Create: the ipset does not exist.
	Create      bool
	Add, Remove []Entry
}

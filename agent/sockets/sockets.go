// Package sockets tells who has the TCP ports of a network namespace: that of the
// calling thread. The kernel says it by netlink (sock_diag), whatever answers there.
package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Listener is a socket that listens.
type Listener struct {
	// UID is the user whose process made it, as seen from the user namespace of this
	// process: in that of the node, 0 is the node's own root.
	UID uint32
	// Cookie is the kernel's name for the socket, which it gives to no other one.
	Cookie uint64
}

// Kernel asks the kernel.
type Kernel struct{}

// Listening returns the listener that gets connections from this node to an address:
// one of this address, of all addresses, or of both IP families. Nil: there is none,
// which is also so where rules lead the connections to another network namespace.
//
// It is one even if several share the port (SO_REUSEPORT): the kernel lets only
// those of one user do so.
func (Kernel) Listening(address netip.AddrPort) (*Listener, error) {
	return listening(address)
}

// Here reports whether the server's end of an open connection is in this network
// namespace. If not, rules have led it elsewhere.
func (Kernel) Here(server, client netip.AddrPort) (bool, error) {
	s, err := find(server, client)
	if err != nil || s == nil {
		return false, err
	}
	return s.State != stateListen, nil // which is what the kernel finds without a connection
}

// Holder returns a listener because of which the address cannot be bound; nil: none
// is known. A port may also be held by a socket that does not listen.
func (Kernel) Holder(address netip.AddrPort) (*Listener, error) {
	if !address.Addr().IsUnspecified() {
		return listening(address)
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		found, err := dump(&request{Family: family, States: 1 << stateListen, ID: id{SourcePort: bigEndian(address.Port())}})
		if found != nil || err != nil {
			return found.listener(), err
		}
	}
	return nil, nil
}

func listening(address netip.AddrPort) (*Listener, error) {
	none := netip.IPv4Unspecified()
	if address.Addr().Is6() {
		none = netip.IPv6Unspecified()
	}
	s, err := find(address, netip.AddrPortFrom(none, 0))
	if err != nil || s == nil || s.State != stateListen {
		return nil, err
	}
	return s.listener(), nil
}

const (
	// stateListen is TCP_LISTEN.
	stateListen = 10
	// loopback is the index of the device lo in every network namespace. By it comes
	// what a node sends to its own addresses.
	loopback = 1
)

// id is struct inet_diag_sockid: whose socket it is that is asked for, from its own
// side. Ports and addresses are in network order.
type id struct {
	SourcePort, DestinationPort [2]byte
	Source, Destination         [16]byte
	Interface                   uint32
	Cookie                      [2]uint32
}

// request is struct inet_diag_req_v2.
type request struct {
	Family, Protocol, Extensions, _ uint8
	States                          uint32
	ID                              id
}

// socket is struct inet_diag_msg.
type socket struct {
	Family, State, Timer, Retransmissions                uint8
	ID                                                   id
	Expires, ReceiveQueue, SendQueue, UserID, FileNumber uint32
}

var _ nl.NetlinkRequestData = (*request)(nil)

// Len implements nl.NetlinkRequestData.
func (r *request) Len() int { return binary.Size(r) }

// Serialize implements nl.NetlinkRequestData.
func (r *request) Serialize() []byte {
	out, _ := binary.Append(nil, binary.NativeEndian, r) // every field has a fixed size
	return out
}

func (s *socket) listener() *Listener {
	if s == nil {
		return nil
	}
	return &Listener{UID: s.UserID, Cookie: uint64(s.ID.Cookie[1])<<32 | uint64(s.ID.Cookie[0])}
}

func bigEndian(port uint16) (out [2]byte) {
	binary.BigEndian.PutUint16(out[:], port)
	return out
}

// find has the kernel look up a socket as it does for a packet that comes from
// client for server. Its cost does not depend on how many sockets there are.
func find(server, client netip.AddrPort) (*socket, error) {
	r := &request{Family: unix.AF_INET, ID: id{
		SourcePort: bigEndian(server.Port()), DestinationPort: bigEndian(client.Port()),
		Interface: loopback, Cookie: [2]uint32{nl.TCPDIAG_NOCOOKIE, nl.TCPDIAG_NOCOOKIE},
	}}
	if server.Addr().Is6() {
		r.Family = unix.AF_INET6
	}
	copy(r.ID.Source[:], server.Addr().AsSlice())
	copy(r.ID.Destination[:], client.Addr().AsSlice())
	found, err := ask(r, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		// So says a kernel that cannot look, too. For no state it looks at nothing.
		return dump(&request{Family: r.Family})
	case errors.Is(err, unix.EINVAL) && r.Family == unix.AF_INET6:
		return nil, nil // a kernel without IPv6
	case err != nil:
		return nil, fmt.Errorf("ask the kernel who has TCP port %d: %w", server.Port(), err)
	}
	return found, nil
}

// dump returns the first of the sockets that there are; nil: none.
func dump(r *request) (*socket, error) {
	found, err := ask(r, unix.NLM_F_DUMP)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, errors.New("the kernel cannot tell who has TCP ports: load its modules inet_diag and tcp_diag (modprobe tcp_diag)")
	case err != nil:
		return nil, fmt.Errorf("ask the kernel who has TCP ports: %w", err)
	}
	return found, nil
}

// ask returns the first socket of the answer. Of the others nothing is kept: a port
// may have as many listeners as there are loopback addresses.
func ask(r *request, flags int) (*socket, error) {
	r.Protocol = unix.IPPROTO_TCP
	message := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, flags)
	message.AddData(r)
	var found *socket
	var unread error
	err := message.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(answer []byte) bool {
		found = &socket{}
		_, unread = binary.Decode(answer, binary.NativeEndian, found)
		return false
	})
	if err == nil {
		err = unread
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

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
	// UID is the user whose process created it, in the user namespace of this process: in the
	// node's, 0 is the node's root.
	UID uint32
	// Cookie is the kernel's unique name of the socket.
	Cookie uint64
}

// Kernel asks the kernel. The netlink library cannot look up a single socket, nor restrict a dump
// to states and ports.
type Kernel struct{}

// Listening returns the listener that gets connections from this node to an address: one of this
// address, of all addresses, or of both IP families. Nil: there is none, even if rules lead the
// connections to another network namespace.
//
// One is enough even if several share the port (SO_REUSEPORT): the kernel only lets those of one
// user do so.
func (Kernel) Listening(address netip.AddrPort) (*Listener, error) {
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

// Here reports whether the server's end of an open connection is in this network namespace. If
// not, rules have led it to another one.
func (Kernel) Here(server, client netip.AddrPort) (bool, error) {
	s, err := find(server, client)
	// Without a connection the kernel finds the listener.
	return s != nil && s.State != stateListen, err
}

// Holder returns a listener that prevents binding an address; nil: none is known. A socket that
// does not listen may also have the port.
func (k Kernel) Holder(address netip.AddrPort) (*Listener, error) {
	if !address.Addr().IsUnspecified() {
		return k.Listening(address)
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		s, err := dump(&request{Family: family, States: 1 << stateListen, ID: id{SourcePort: bigEndian(address.Port())}})
		if err != nil {
			return nil, err
		}
		if s != nil {
			return s.listener(), nil
		}
	}
	return nil, nil
}

const (
	// stateListen is TCP_LISTEN.
	stateListen = 10
	// loopback is the index of device lo in every network namespace, by which packets of a node to
	// its own addresses arrive.
	loopback = 1
)

// id is struct inet_diag_sockid, from the socket's own side. Ports and addresses are in network
// order.
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

func (s *socket) listener() *Listener {
	return &Listener{UID: s.UserID, Cookie: uint64(s.ID.Cookie[1])<<32 | uint64(s.ID.Cookie[0])}
}

func bigEndian(port uint16) (out [2]byte) {
	binary.BigEndian.PutUint16(out[:], port)
	return out
}

// find makes the kernel look up a socket like for a packet from client to server. Its cost does
// not depend on the number of sockets.
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
		// A kernel without sock_diag answers the same. A dump of no state distinguishes them.
		return dump(&request{Family: r.Family})
	case errors.Is(err, unix.EINVAL) && r.Family == unix.AF_INET6:
		return nil, nil // a kernel without IPv6
	case err != nil:
		return nil, fmt.Errorf("ask the kernel which process has TCP port %d: %w", server.Port(), err)
	}
	return found, nil
}

// dump returns the first matching socket; nil: there is none.
func dump(r *request) (*socket, error) {
	found, err := ask(r, unix.NLM_F_DUMP)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, errors.New("the kernel cannot report which processes have TCP ports: load its modules inet_diag and tcp_diag (modprobe tcp_diag)")
	case err != nil:
		return nil, fmt.Errorf("ask the kernel which processes have TCP ports: %w", err)
	}
	return found, nil
}

// ask returns the first socket of the answer, without storing others: a port may have as many
// listeners as there are loopback addresses.
func ask(r *request, flags int) (*socket, error) {
	r.Protocol = unix.IPPROTO_TCP
	data, err := binary.Append(nil, binary.NativeEndian, r)
	if err != nil {
		return nil, err
	}
	message := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, flags)
	message.AddRawData(data)
	var found *socket
	var unread error
	err = message.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(answer []byte) bool {
		found = &socket{}
		_, unread = binary.Decode(answer, binary.NativeEndian, found)
		return false
	})
	if err := errors.Join(err, unread); err != nil {
		return nil, err
	}
	return found, nil
}

package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

const (
	// listHeader is a flag of a request: without entries.
	listHeader = 4
	// errFull is the kernel's answer to an entry for which there is no space.
	errFull = syscall.Errno(nl.IPSET_ERR_TYPE_SPECIFIC)
)

// sets are the node's ipsets. The library has no requests with more than one entry, and logs
// errors about attributes of newer kernels, so only its socket is used.
type sets struct {
	family uint8

	mu sync.Mutex
	// socket is nil until it is needed, and after an error.
	socket *nl.SocketHandle
	// headers are those of the sets that have been checked.
	headers map[SetName]setHeader
}

// setHeader describes a set.
type setHeader struct {
	kind SetType
	// family is 0 for sets without addresses.
	family uint8
	// maxElem is the maximum number of entries; 0: no limit.
	maxElem int
}

// request sends a message and calls reply with each message of the answer. An error that is
// not the kernel's answer closes the socket.
func (s *sets) request(command int, flags int, body []byte, reply func([]byte)) error {
	if s.socket == nil {
		socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_NETFILTER)
		if err != nil {
			return fmt.Errorf("open a netlink socket: %w", err)
		}
		if err := errors.Join(socket.SetSendTimeout(&nl.SocketTimeoutTv), socket.SetReceiveTimeout(&nl.SocketTimeoutTv)); err != nil {
			socket.Close()
			return fmt.Errorf("open a netlink socket: %w", err)
		}
		s.socket, s.headers = &nl.SocketHandle{Socket: socket}, map[SetName]setHeader{}
	}
	req := nl.NewNetlinkRequest(command|unix.NFNL_SUBSYS_IPSET<<8, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: s.socket}
	req.AddData(&nl.Nfgenmsg{NfgenFamily: s.family, Version: nl.NFNETLINK_V0})
	req.AddRawData(append(nlattr.Append(nil, nl.IPSET_ATTR_PROTOCOL, []byte{nl.IPSET_PROTOCOL}), body...))
	err := req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		if reply != nil && len(message) > nl.SizeofNfgenmsg {
			reply(message[nl.SizeofNfgenmsg:])
		}
		return true
	})
	if _, known := ipsetError(err); err != nil && !isAnswer(err) && !known {
		s.socket.Close()
		s.socket = nil
	}
	return err
}

// ipsetError returns an error code that only ipset has.
func ipsetError(err error) (syscall.Errno, bool) {
	no, found := errors.AsType[syscall.Errno](err)
	return no, found && no >= nl.IPSET_ERR_PRIVATE
}

func named(name SetName) []byte { return nlattr.AppendText(nil, nl.IPSET_ATTR_SETNAME, string(name)) }

func appendNumber(b []byte, kind uint16, n int) []byte {
	return nlattr.AppendUint32(b, kind|nlattr.NetByteOrder, uint32(n))
}

// familyOf is the family of sets of a type.
func (s *sets) familyOf(t SetType) uint8 {
	if t == BitmapPort {
		return unix.AF_UNSPEC
	}
	return s.family
}

// ourTypes are the types of our sets.
var ourTypes = []SetType{HashIP, HashIPPort, HashIPPortIP, HashIPPortNet, BitmapPort}

// find makes the kernel load ipset and the types of our sets.
func (s *sets) find() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.request(nl.IPSET_CMD_PROTOCOL, unix.NLM_F_REQUEST, nil, nil); err != nil {
		return unsupported("ipset", "load the module ip_set (modprobe ip_set) on the node, or choose another mode", err)
	}
	for _, t := range ourTypes {
		if _, err := s.revision(t); err != nil {
			return err
		}
	}
	return nil
}

// revision returns the kernel's newest revision of a type.
func (s *sets) revision(t SetType) (uint8, error) {
	var newest uint8
	body := nlattr.AppendText(nil, nl.IPSET_ATTR_TYPENAME, string(t))
	body = nlattr.Append(body, nl.IPSET_ATTR_FAMILY, []byte{s.familyOf(t)})
	err := s.request(nl.IPSET_CMD_TYPE, unix.NLM_F_REQUEST, body, func(message []byte) {
		for kind, value := range nlattr.All(message) {
			if kind == nl.IPSET_ATTR_REVISION && len(value) == 1 {
				newest = value[0]
			}
		}
	})
	if err != nil {
		module := "ip_set_" + strings.NewReplacer(":", "_", ",", "").Replace(string(t))
		return 0, unsupported("ipset type "+string(t), "load its module (modprobe "+module+") on the node, or choose another mode", setReason(err))
	}
	return newest, nil
}

// Sets implements Kernel.
func (s *sets) Sets(names []SetName) (map[SetName][]Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[SetName][]Entry, len(names))
	for _, name := range names {
		header, entries, err := s.read(name, true)
		switch {
		case errors.Is(err, unix.ENOENT):
			continue
		case err != nil:
			return nil, &SetError{Set: name, Err: fmt.Errorf("read it: %w", setReason(err))}
		}
		if header.family != s.familyOf(header.kind) || !slices.Contains(ourTypes, header.kind) {
			return nil, &SetError{Set: name, Err: errors.New("it has " + header.what() + ", which nodeproxy does not use: " + deleteIt(name))}
		}
		s.headers[name] = header
		out[name] = entries
	}
	return out, nil
}

func (h setHeader) what() string {
	suffix := map[uint8]string{unix.AF_INET: " for IPv4", unix.AF_INET6: " for IPv6"}[h.family]
	return "type " + string(h.kind) + suffix
}

func deleteIt(name SetName) string {
	return "delete it (ipset destroy " + string(name) + "), and first the rules that use it (iptables-save | grep " + string(name) + ")"
}

// read reads a set. The error is ENOENT if it is missing.
func (s *sets) read(name SetName, entries bool) (setHeader, []Entry, error) {
	var list setList
	body := named(name)
	if !entries {
		body = appendNumber(body, nl.IPSET_ATTR_FLAGS, listHeader)
	}
	err := s.request(nl.IPSET_CMD_LIST, nl.GetIpsetFlags(nl.IPSET_CMD_LIST), body, list.add)
	return list.header, list.entries, errors.Join(err, list.err)
}

// setList is the list of one set.
type setList struct {
	header  setHeader
	entries []Entry
	err     error
}

// add adds a message of the answer.
func (l *setList) add(message []byte) {
	for kind, value := range nlattr.All(message) {
		switch {
		case kind == nl.IPSET_ATTR_TYPENAME:
			l.header.kind = SetType(nlattr.Text(value))
		case kind == nl.IPSET_ATTR_FAMILY && len(value) == 1:
			l.header.family = value[0]
		case kind == nl.IPSET_ATTR_DATA:
			for kind, value := range nlattr.All(value) {
				if kind == nl.IPSET_ATTR_MAXELEM && len(value) == 4 {
					l.header.maxElem = int(binary.BigEndian.Uint32(value))
				}
			}
		case kind == nl.IPSET_ATTR_ADT:
			for _, one := range nlattr.All(value) {
				x, err := parseAttributes(l.header.kind, one)
				l.err = errors.Join(l.err, err)
				l.entries = append(l.entries, x.Entry(l.header.kind))
			}
		}
	}
}

// setReason explains the kernel's answer.
func setReason(err error) error {
	no, found := ipsetError(err)
	if !found {
		return err
	}
	words := map[syscall.Errno]string{
		nl.IPSET_ERR_FIND_TYPE:     "the kernel does not have this type or revision",
		nl.IPSET_ERR_MAX_SETS:      "the kernel has no space for another set",
		nl.IPSET_ERR_BUSY:          "it is in use by iptables rules",
		nl.IPSET_ERR_REFERENCED:    "it is in use",
		nl.IPSET_ERR_TYPE_MISMATCH: "the sets are of different types",
		nl.IPSET_ERR_INVALID_CIDR:  "the length of the network is not valid for this set",
		errFull:                    "it is full, or the entry is out of its range",
	}
	if text, ok := words[no]; ok {
		return fmt.Errorf("%s (%w)", text, no)
	}
	return fmt.Errorf("the kernel rejects it: %w", nl.IPSetError(no))
}

// encode returns the element's attributes.
func (x Element) encode(t SetType) []byte {
	var b []byte
	if t != BitmapPort {
		b = appendAddress(b, nl.IPSET_ATTR_IP, x.Addr)
	}
	if t != BitmapPort && t != HashIP {
		b = nlattr.Append(b, nl.IPSET_ATTR_PROTO, []byte{x.Protocol})
	}
	if t != HashIP {
		b = nlattr.AppendUint16(b, nl.IPSET_ATTR_PORT|nlattr.NetByteOrder, x.Port)
	}
	if t.parts() == 3 {
		b = appendAddress(b, nl.IPSET_ATTR_IP2, x.Second.Addr())
	}
	if t == HashIPPortNet {
		b = nlattr.Append(b, nl.IPSET_ATTR_CIDR2, []byte{uint8(x.Second.Bits())})
	}
	return b
}

// fixedLengths are the lengths of attributes of an entry, in bytes. Others vary.
var fixedLengths = map[uint16]int{nl.IPSET_ATTR_PROTO: 1, nl.IPSET_ATTR_CIDR2: 1, nl.IPSET_ATTR_PORT: 2, nl.IPSET_ATTR_CADT_FLAGS: 4}

// parseAttributes parses an element from the kernel.
func parseAttributes(t SetType, b []byte) (Element, error) {
	var x Element
	var second netip.Addr
	bits := -1
	for kind, value := range nlattr.All(b) {
		if n := fixedLengths[kind]; n > 0 && len(value) != n {
			return Element{}, fmt.Errorf("the kernel returned an entry of an ipset of type %s with %d bytes in attribute %d instead of %d", t, len(value), kind, n)
		}
		switch kind {
		case nl.IPSET_ATTR_IP:
			x.Addr = parseAddress(value)
		case nl.IPSET_ATTR_IP2:
			second = parseAddress(value)
		case nl.IPSET_ATTR_PROTO:
			x.Protocol = value[0]
		case nl.IPSET_ATTR_PORT:
			x.Port = binary.BigEndian.Uint16(value)
		case nl.IPSET_ATTR_CIDR2:
			bits = int(value[0])
		case nl.IPSET_ATTR_CADT_FLAGS:
			x.NoMatch = binary.BigEndian.Uint32(value)&nl.IPSET_FLAG_NOMATCH != 0
		}
	}
	if second.IsValid() {
		if bits < 0 {
			bits = second.BitLen()
		}
		x.Second = netip.PrefixFrom(second, bits)
	}
	if t != BitmapPort && !x.Addr.IsValid() || t.parts() == 3 && !x.Second.IsValid() {
		return Element{}, fmt.Errorf("the kernel returned an entry of an ipset of type %s without an address", t)
	}
	return x, nil
}

func appendAddress(b []byte, kind uint16, a netip.Addr) []byte {
	family := uint16(nl.IPSET_ATTR_IPADDR_IPV6)
	if a.Is4() {
		family = nl.IPSET_ATTR_IPADDR_IPV4
	}
	return nlattr.Append(b, kind|nlattr.Nested, nlattr.Append(nil, family|nlattr.NetByteOrder, a.AsSlice()))
}

func parseAddress(b []byte) netip.Addr {
	for _, value := range nlattr.All(b) {
		addr, _ := netip.AddrFromSlice(value) // invalid if it is none
		return addr
	}
	return netip.Addr{}
}

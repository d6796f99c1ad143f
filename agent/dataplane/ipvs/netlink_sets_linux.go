package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// Attributes of messages about ipsets, and of what sets are made with, as in the
// kernel's ip_set.h.
const (
	attrProtocol = 1
	attrSetName  = 2
	attrTypeName = 3
	attrRevision = 4
	attrFamily   = 5
	attrSetFlags = 6
	attrData     = 7
	attrEntries  = 8
	attrLine     = 9

	attrOtherName = attrTypeName // when sets are swapped

	attrPortFrom = 4
	attrPortTo   = 5
	attrHashSize = 18
	attrMaxElem  = 19

	listHeader = 4 // a flag: without entries
)

const (
	// setProtocol is the version of the messages. All kernels since 2.6.39 take it.
	setProtocol = 6
	// hashSize is what sets begin with, and maxElem how many entries they take at
	// the least: kube-proxy makes its sets so.
	hashSize = 1024
	maxElem  = 65536
	// batchEntries are how many entries go into one message, whose size the kernel
	// limits to 64 KiB.
	batchEntries = 400
	// errFull is what the kernel says to an entry that has no room.
	errFull = syscall.Errno(nl.IPSET_ERR_TYPE_SPECIFIC)
)

// sets are the node's ipsets. The library has no requests that carry more than
// one entry, and complains in the log of what newer kernels tell of a set, so it
// is used for the socket alone.
type sets struct {
	family uint8

	mu sync.Mutex
	// socket is nil until it is needed, and after an error.
	socket *nl.SocketHandle
	// headers are the sets that are known to be as they should.
	headers map[SetName]setHeader
}

// setHeader is what a set is.
type setHeader struct {
	kind SetType
	// family is 0 for sets without addresses.
	family uint8
	// maxElem is how many entries it takes; 0: no limit.
	maxElem int
}

// request sends a message and calls reply with each message of the answer. An
// error that is no answer of the kernel closes the socket.
func (s *sets) request(command int, flags int, body []byte, reply func([]byte)) error {
	if s.socket == nil {
		socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_NETFILTER)
		if err != nil {
			return fmt.Errorf("opening a netlink socket: %w", err)
		}
		if err := errors.Join(socket.SetSendTimeout(&nl.SocketTimeoutTv), socket.SetReceiveTimeout(&nl.SocketTimeoutTv)); err != nil {
			socket.Close()
			return fmt.Errorf("opening a netlink socket: %w", err)
		}
		s.socket, s.headers = &nl.SocketHandle{Socket: socket}, map[SetName]setHeader{}
	}
	req := nl.NewNetlinkRequest(command|unix.NFNL_SUBSYS_IPSET<<8, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: s.socket}
	req.AddData(&nl.Nfgenmsg{NfgenFamily: s.family, Version: nl.NFNETLINK_V0})
	req.AddRawData(append(nlattr.Append(nil, attrProtocol, []byte{setProtocol}), body...))
	err := req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		if reply != nil && len(message) > nl.SizeofNfgenmsg {
			reply(message[nl.SizeofNfgenmsg:])
		}
		return true
	})
	var no syscall.Errno
	if err != nil && !isAnswer(err) && (!errors.As(err, &no) || no < nl.IPSET_ERR_PRIVATE) {
		s.socket.Close()
		s.socket = nil
	}
	return err
}

func named(name SetName) []byte { return nlattr.AppendText(nil, attrSetName, string(name)) }

func appendNumber(b []byte, kind uint16, n int) []byte {
	return nlattr.AppendUint32(b, kind|nlattr.NetByteOrder, uint32(n))
}

// familyOf is the family that sets of a type have.
func (s *sets) familyOf(t SetType) uint8 {
	if t == BitmapPort {
		return unix.AF_UNSPEC
	}
	return s.family
}

// find makes the kernel load ipset and the types of our sets.
func (s *sets) find() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.request(nl.IPSET_CMD_PROTOCOL, unix.NLM_F_REQUEST, nil, nil); err != nil {
		return unsupported("ipset", "load the module ip_set (modprobe ip_set) on the node, or choose another mode", err)
	}
	for _, t := range []SetType{HashIP, HashIPPort, HashIPPortIP, HashIPPortNet, BitmapPort} {
		if _, err := s.revision(t); err != nil {
			return err
		}
	}
	return nil
}

// revision is the newest of a type that the kernel has.
func (s *sets) revision(t SetType) (uint8, error) {
	var newest uint8
	body := nlattr.AppendText(nil, attrTypeName, string(t))
	body = nlattr.Append(body, attrFamily, []byte{s.familyOf(t)})
	err := s.request(nl.IPSET_CMD_TYPE, unix.NLM_F_REQUEST, body, func(message []byte) {
		for kind, value := range nlattr.All(message) {
			if kind == attrRevision && len(value) == 1 {
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
			return nil, &SetError{Set: name, Err: fmt.Errorf("reading it: %w", setReason(err))}
		}
		if header.family != s.familyOf(header.kind) || !isOurType(header.kind) {
			return nil, &SetError{Set: name, Err: errors.New("it is one of " + header.what() + ", which is none of ours: " + deleteIt(name))}
		}
		s.headers[name] = header
		out[name] = entries
	}
	return out, nil
}

func isOurType(t SetType) bool {
	return t == HashIP || t == HashIPPort || t == HashIPPortIP || t == HashIPPortNet || t == BitmapPort
}

func (h setHeader) what() string {
	switch h.family {
	case unix.AF_INET:
		return "type " + string(h.kind) + " for IPv4"
	case unix.AF_INET6:
		return "type " + string(h.kind) + " for IPv6"
	default:
		return "type " + string(h.kind)
	}
}

func deleteIt(name SetName) string {
	return "delete it (ipset destroy " + string(name) + "), and first the rules that use it (iptables-save | grep " + string(name) + ")"
}

// read reads a set. The error is ENOENT where there is none.
func (s *sets) read(name SetName, entries bool) (setHeader, []Entry, error) {
	var list setList
	body := named(name)
	if !entries {
		body = appendNumber(body, attrSetFlags, listHeader)
	}
	err := s.request(nl.IPSET_CMD_LIST, nl.GetIpsetFlags(nl.IPSET_CMD_LIST), body, list.add)
	return list.header, list.entries, errors.Join(err, list.err)
}

// setList is what the messages of an answer list of one set.
type setList struct {
	header  setHeader
	entries []Entry
	err     error
}

// add reads one message.
func (l *setList) add(message []byte) {
	for kind, value := range nlattr.All(message) {
		switch {
		case kind == attrTypeName:
			l.header.kind = SetType(nlattr.Text(value))
		case kind == attrFamily && len(value) == 1:
			l.header.family = value[0]
		case kind == attrData:
			l.header.parse(value)
		case kind == attrEntries:
			for _, one := range nlattr.All(value) {
				x, err := parseAttributes(l.header.kind, one)
				l.err = errors.Join(l.err, err)
				l.entries = append(l.entries, x.entry(l.header.kind))
			}
		}
	}
}

func (h *setHeader) parse(b []byte) {
	for kind, value := range nlattr.All(b) {
		if kind == attrMaxElem && len(value) == 4 {
			h.maxElem = int(binary.BigEndian.Uint32(value))
		}
	}
}

// setReason says in words what the kernel means.
func setReason(err error) error {
	var no syscall.Errno
	if !errors.As(err, &no) || no < nl.IPSET_ERR_PRIVATE {
		return err
	}
	words := map[syscall.Errno]string{
		nl.IPSET_ERR_FIND_TYPE:     "the kernel does not have this type or revision",
		nl.IPSET_ERR_MAX_SETS:      "the kernel has no room for another set",
		nl.IPSET_ERR_BUSY:          "it is in use by iptables rules",
		nl.IPSET_ERR_REFERENCED:    "it is in use",
		nl.IPSET_ERR_TYPE_MISMATCH: "the sets are of different types",
		nl.IPSET_ERR_INVALID_CIDR:  "the length of the network is none for this set",
		errFull:                    "it is full, or the entry is out of its range",
	}
	if text, ok := words[no]; ok {
		return fmt.Errorf("%s (%w)", text, no)
	}
	return fmt.Errorf("the kernel rejects it: %w", nl.IPSetError(no))
}

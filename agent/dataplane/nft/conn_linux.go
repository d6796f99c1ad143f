package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// errCutShort is returned for an answer that is not whole.
var errCutShort = errors.New("the kernel's answer is cut short")

const (
	// patience is how long an answer may take: the kernel commits a batch before it answers, and
	// waits for others.
	patience = time.Minute
	// receiveBytes is the size of the buffer for answers. The kernel fills at most 32 KiB at a time.
	receiveBytes = 64 << 10
)

// Conn is a socket in the network namespace in which it was opened. Its methods are not called
// concurrently.
type Conn struct {
	fd       int
	port     uint32
	sequence uint32
	buffer   []byte
}

// Open opens a socket in the network namespace of the calling thread.
func Open() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", os.NewSyscallError("socket", err))
	}
	c := &Conn{fd: fd, buffer: make([]byte, receiveBytes)}
	if err := c.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("open a netlink socket: %w", err), c.Close())
	}
	return c, nil
}

func (c *Conn) prepare() error {
	if err := unix.Bind(c.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	name, err := unix.Getsockname(c.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	if address, ok := name.(*unix.SockaddrNetlink); ok {
		c.port = address.Pid
	}
	// A batch must be sent by one call, however large.
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, MaxBatch+MaxBatch/4); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	// Answers with the kernel's words, and without a copy of the request.
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK} {
		if err := unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, option, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	timeout := unix.NsecToTimeval(patience.Nanoseconds())
	return os.NewSyscallError("setsockopt", unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
}

// Close closes the socket. Tables that it owns stay, without an owner.
func (c *Conn) Close() error { return os.NewSyscallError("close", unix.Close(c.fd)) }

// Port identifies the socket in events.
func (c *Conn) Port() uint32 { return c.port }

// Commit has the kernel make a batch, all of it or nothing. Generation is that of the tables
// which it was made for, 0 for any: where it is no longer, the error is ErrChanged. Where the kernel
// rejects a message, it is a RejectedError.
func (c *Conn) Commit(b *Batch, generation uint32) error {
	if b.count == 0 {
		return nil
	}
	if err := b.Check(); err != nil {
		return err
	}
	// The messages are numbered from 1, and the socket's own numbers are not repeated.
	first := c.sequence + 1
	c.sequence += uint32(b.count) + 2 //nolint:gosec // few
	data := make([]byte, 0, len(b.messages)+64)
	data = appendHeader(data, unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, int(first), unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	if generation != 0 {
		data = nlattr.AppendUint32(data, unix.NFNL_BATCH_GENID, generation)
	}
	binary.NativeEndian.PutUint32(data, uint32(len(data))) //nolint:gosec // small
	begin := len(data)
	data = append(data, b.messages...)
	last := 0
	for at, n := begin, uint32(1); at < len(data); n++ {
		binary.NativeEndian.PutUint32(data[at+8:], first+n)
		last = at
		at += int(binary.NativeEndian.Uint32(data[at:])+3) &^ 3
	}
	flags := binary.NativeEndian.Uint16(data[last+6:])
	binary.NativeEndian.PutUint16(data[last+6:], flags|unix.NLM_F_ACK)
	end := len(data)
	data = appendHeader(data, unix.NFNL_MSG_BATCH_END, unix.NLM_F_REQUEST, int(c.sequence), unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	binary.NativeEndian.PutUint32(data[end:], uint32(len(data)-end)) //nolint:gosec // small
	if err := c.send(data); err != nil {
		return err
	}
	return c.committed(first, first+uint32(b.count)) //nolint:gosec // few
}

// committed waits for the answer to a batch, whose first and last messages have these numbers.
func (c *Conn) committed(first, last uint32) error {
	var rejected error
	for {
		datagram, err := c.receive()
		if err != nil {
			return err
		}
		for m := range messages(datagram) {
			if m.subsystem != 0 || m.kind != unix.NLMSG_ERROR || m.sequence < first || m.sequence > c.sequence {
				continue
			}
			e := errorOf(m)
			switch {
			case e.Err == unix.ERESTART:
				return ErrChanged
			case m.sequence == first:
				e.Message = -1
				return &e
			case e.Err != 0 && rejected == nil:
				e.Message = int(m.sequence - first - 1)
				rejected = &e
			}
			if m.sequence >= last {
				return rejected
			}
		}
	}
}

// failureOf returns the error with which a listing ends.
func failureOf(m message) error {
	if len(m.body) < 4 {
		return errCutShort
	}
	if code := -int32(binary.NativeEndian.Uint32(m.body)); code != 0 { //nolint:gosec // as the kernel has it
		return syscall.Errno(code)
	}
	return nil
}

// errorOf returns the error in an answer, with Err 0 for success.
func errorOf(m message) RejectedError {
	if len(m.body) < 4+headerLength {
		return RejectedError{Err: unix.EBADMSG}
	}
	e := RejectedError{Err: syscall.Errno(-int32(binary.NativeEndian.Uint32(m.body)))} //nolint:gosec // as the kernel has it
	if m.flags&unix.NLM_F_ACK_TLVS == 0 {
		return e
	}
	for kind, value := range nlattr.All(m.body[4+headerLength:]) {
		switch {
		case kind == unix.NLMSGERR_ATTR_MSG:
			e.Text = nlattr.Text(value)
		case kind == unix.NLMSGERR_ATTR_OFFS && len(value) == 4:
			e.Offset = int(binary.NativeEndian.Uint32(value))
		}
	}
	return e
}

func (c *Conn) send(data []byte) error {
	for {
		err := unix.Sendto(c.fd, data, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("sendto", err)
		}
	}
}

func (c *Conn) receive() ([]byte, error) {
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buffer, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return nil, fmt.Errorf("the kernel has not answered within %s", patience)
		case err != nil:
			return nil, os.NewSyscallError("recvfrom", err)
		case n > len(c.buffer):
			return nil, fmt.Errorf("%w: of %d bytes of an answer, %d fit", errCutShort, n, len(c.buffer))
		default:
			return c.buffer[:n], nil
		}
	}
}

// Generation returns that of all tables: it changes with each batch of any program.
func (c *Conn) Generation() (uint32, error) {
	var out uint32
	err := c.ask(unix.AF_UNSPEC, unix.NFT_MSG_GETGEN, 0, nil, func(body []byte) {
		for kind, value := range nlattr.All(body) {
			if kind == unix.NFTA_GEN_ID {
				out = number(value)
			}
		}
	})
	return out, err
}

// HasTable reports whether there is a table, and who may change it.
func (c *Conn) HasTable(t Table) (found bool, of Ownership, err error) {
	request := nlattr.AppendText(nil, unix.NFTA_TABLE_NAME, t.Name)
	err = c.ask(t.Family, unix.NFT_MSG_GETTABLE, 0, request, func(body []byte) { found, of = true, parseTable(body) })
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return found, of, err
}

// Chains lists the chains of a table; none if there is no table.
func (c *Conn) Chains(t Table) ([]Chain, error) {
	var out []Chain
	err := c.ask(t.Family, unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, nil, func(body []byte) {
		if table, chain := parseChain(body); table == t.Name {
			out = append(out, chain)
		}
	})
	return out, err
}

// Rules lists the rules of a table, chain by chain, in their order.
func (c *Conn) Rules(t Table) ([]Rule, error) {
	var out []Rule
	request := nlattr.AppendText(nil, unix.NFTA_RULE_TABLE, t.Name)
	err := c.ask(t.Family, unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, request, func(body []byte) {
		if table, rule := parseRule(body); table == t.Name {
			out = append(out, rule)
		}
	})
	return out, err
}

// Sets lists the sets and maps of a table.
func (c *Conn) Sets(t Table) ([]ListedSet, error) {
	var out []ListedSet
	request := nlattr.AppendText(nil, unix.NFTA_SET_TABLE, t.Name)
	err := c.ask(t.Family, unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, request, func(body []byte) {
		if table, set := parseSet(body); table == t.Name {
			out = append(out, set)
		}
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return out, err
}

// Elements calls yield with each element of a set, which is valid until it returns. For a moment
// after many elements were added, while the kernel makes the set's table larger, some may be
// missing, and others be there twice: Find is exact.
func (c *Conn) Elements(t Table, set string, yield func(*Element)) error {
	request := nlattr.AppendText(nil, unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	request = nlattr.AppendText(request, unix.NFTA_SET_ELEM_LIST_SET, set)
	return c.ask(t.Family, unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, request, func(body []byte) { parseElements(body, yield) })
}

// Find returns the element with a key; nil if there is none.
func (c *Conn) Find(t Table, set string, key []byte) (*Element, error) {
	request := nlattr.AppendText(nil, unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	request = nlattr.AppendText(request, unix.NFTA_SET_ELEM_LIST_SET, set)
	request, list := nlattr.Open(request, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	request, one := nlattr.Open(request, unix.NFTA_LIST_ELEM)
	request = appendValue(request, unix.NFTA_SET_ELEM_KEY, key)
	nlattr.Close(request, one)
	nlattr.Close(request, list)
	var out *Element
	err := c.ask(t.Family, unix.NFT_MSG_GETSETELEM, 0, request, func(body []byte) {
		parseElements(body, func(e *Element) {
			one := e.Clone()
			out = &one
		})
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return out, err
}

// ask sends a request and calls reply with the attributes of each message of the answer.
func (c *Conn) ask(family byte, kind, flags int, request []byte, reply func([]byte)) error {
	c.sequence++
	data := appendHeader(nil, unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_REQUEST|flags, int(c.sequence), family, 0)
	data = append(data, request...)
	binary.NativeEndian.PutUint32(data, uint32(len(data))) //nolint:gosec // small
	if err := c.send(data); err != nil {
		return err
	}
	interrupted := false
	for {
		datagram, err := c.receive()
		if err != nil {
			return err
		}
		for m := range messages(datagram) {
			if m.sequence != c.sequence {
				continue // the rest of an answer that was given up
			}
			interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
			switch {
			case m.subsystem != 0:
				reply(m.body)
				if m.flags&unix.NLM_F_MULTI == 0 {
					return nil
				}
			case m.kind == unix.NLMSG_ERROR:
				switch e := errorOf(m); {
				case e.Err == 0:
					return nil
				case e.Text != "":
					return fmt.Errorf("%s: %w", e.Text, e.Err)
				default:
					return e.Err
				}
			case m.kind == unix.NLMSG_DONE:
				if err := failureOf(m); err != nil || !interrupted { // one that fails has not come to its end
					return err
				}
				return ErrInterrupted
			}
		}
	}
}

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Unanswered is the error of a TCP connection whose first packets got no answer.
type Unanswered struct {
	// From is the client's address, To what it connected to.
	From, To netip.AddrPort
	err      error
}

func (u *Unanswered) Error() string { return fmt.Sprintf("from port %d: %v", u.From.Port(), u.err) }

// Unwrap returns what wraps ErrNoAnswer.
func (u *Unanswered) Unwrap() error { return u.err }

// Trace reports of a connection that got no answer what the connection tracking of
// each place holds of it and which rules it meets there. It has to be called soon,
// as the kernel forgets. Other errors it returns as they are.
func (c *Cluster) Trace(ctx context.Context, err error) error {
	u, ok := errors.AsType[*Unanswered](err)
	if !ok {
		return err
	}
	c.mu.Lock()
	places := slices.Clone(c.places)
	c.mu.Unlock()
	var lines []string
	for _, p := range places {
		flows, flowsErr := p.Flows(u.From.Addr(), func(f Flow) bool {
			// On the way it may have got another source, or it has kept it.
			return f.From.Port() == u.From.Port() || f.ReplyTo.Port() == u.From.Port()
		})
		if flowsErr != nil {
			lines = append(lines, fmt.Sprintf("%s: %v", p.name, flowsErr))
		}
		if len(flows) == 0 {
			continue
		}
		for _, f := range flows {
			lines = append(lines, fmt.Sprintf("%s tracks %s", p.name, f))
		}
		lines = append(lines, fmt.Sprintf("%s has %s", p.name, p.rulesFor(ctx, u.To)))
	}
	if len(lines) == 0 {
		lines = []string{"no place tracks it"}
	}
	return fmt.Errorf("%w\n  %s", err, strings.Join(lines, "\n  "))
}

// Flow is a TCP connection as the connection tracking of a place holds it.
type Flow struct {
	// From and To are the first packet's, as the client sent it.
	From, To netip.AddrPort
	// ReplyFrom and ReplyTo are those of an answer: ReplyFrom is the endpoint.
	ReplyFrom, ReplyTo netip.AddrPort
	// State is the kernel's word, such as SYN_SENT.
	State string
	// Seconds are how long the kernel keeps it if no packet comes.
	Seconds int
}

// String returns the flow as human-readable text.
func (f Flow) String() string {
	to := "not translated"
	if f.ReplyFrom != f.To {
		to = "sent to " + f.ReplyFrom.String()
	}
	return fmt.Sprintf("%s to %s: %s, %s, for another %d s", f.From, f.To, f.State, to, f.Seconds)
}

// tcpStates are the kernel's, by number.
var tcpStates = []string{"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2"}

// Flows returns those TCP connections that the place tracks, in the IP family of an
// address, that were asked for.
func (p *Place) Flows(family netip.Addr, filter func(Flow) bool) ([]Flow, error) {
	inet := netlink.InetFamily(unix.AF_INET)
	if family.Is6() {
		inet = unix.AF_INET6
	}
	var found []Flow
	err := p.Do(func() error {
		list, err := netlink.ConntrackTableList(netlink.ConntrackTable, inet)
		for _, entry := range list {
			tcp, ok := entry.ProtoInfo.(*netlink.ProtoInfoTCP)
			if !ok {
				continue
			}
			f := Flow{
				From: end(entry.Forward.SrcIP, entry.Forward.SrcPort), To: end(entry.Forward.DstIP, entry.Forward.DstPort),
				ReplyFrom: end(entry.Reverse.SrcIP, entry.Reverse.SrcPort), ReplyTo: end(entry.Reverse.DstIP, entry.Reverse.DstPort),
				State: fmt.Sprint(tcp.State), Seconds: int(entry.TimeOut),
			}
			if int(tcp.State) < len(tcpStates) {
				f.State = tcpStates[tcp.State]
			}
			if filter(f) {
				found = append(found, f)
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the connection tracking of %s: %w", p.name, err)
	}
	return found, nil
}

func end(ip []byte, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}

// rulesFor states how many rules for an address there are, and prints the first ones.
func (p *Place) rulesFor(ctx context.Context, to netip.AddrPort) string {
	program := "iptables-save"
	if to.Addr().Is6() {
		program = "ip6tables-save"
	}
	out, err := p.Exec(ctx, program, "-c")
	if err != nil {
		return err.Error()
	}
	rules := slices.DeleteFunc(strings.Split(out, "\n"), func(line string) bool {
		return !strings.Contains(line, " "+to.Addr().String()+"/")
	})
	if len(rules) == 0 {
		return "no rule for " + to.Addr().String()
	}
	return fmt.Sprintf("%d rules for %s:\n    %s", len(rules), to.Addr(), strings.Join(rules[:min(len(rules), 6)], "\n    "))
}

// watched keeps a second handle of a socket while it connects, by which its address
// can be asked for when that has failed.
type watched struct{ fd int }

func (w *watched) control(_ context.Context, _, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		var err error
		if w.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err != nil {
			w.fd = -1
		}
	})
}

// end gives the handle back and returns the socket's address if it has one.
func (w *watched) end() (netip.AddrPort, bool) {
	if w.fd < 0 {
		return netip.AddrPort{}, false
	}
	defer unix.Close(w.fd)
	name, err := unix.Getsockname(w.fd)
	if err != nil {
		return netip.AddrPort{}, false
	}
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		return end(name.Addr[:], uint16(name.Port)), true //nolint:gosec // ports fit
	case *unix.SockaddrInet6:
		return end(name.Addr[:], uint16(name.Port)), true //nolint:gosec // ports fit
	default:
		return netip.AddrPort{}, false
	}
}

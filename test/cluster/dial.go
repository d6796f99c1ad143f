package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/sctp"
)

// How a connection can fail. Dial and Ask wrap one of these where they know.
var (
	// ErrRejected means a rejection: a TCP reset or an ICMP message.
	ErrRejected = errors.New("rejected")
	// ErrNoAnswer means that nothing came back within the time.
	ErrNoAnswer = errors.New("no answer")
	// ErrClosed means that the other side ended an open connection.
	ErrClosed = errors.New("closed by the other side")
)

// dialTimeout is for callers whose context has no deadline. It is longer than
// the second after which TCP repeats a lost first packet, so that one lost
// packet on a busy machine is not taken for a rule that drops.
const dialTimeout = 2500 * time.Millisecond

// Answer is what an echo server reports.
type Answer struct {
	// Server is the name of the pod that answered.
	Server string
	// Client is the client's address and port as the server saw it.
	Client netip.AddrPort
}

// String returns the answer in words.
func (a Answer) String() string { return fmt.Sprintf("%s, which saw %s", a.Server, a.Client.Addr()) }

// Conn is an open connection to an echo server.
type Conn struct {
	conn   net.Conn
	reader *bufio.Reader
	// open is how many questions have no answer so far. Datagrams may get lost,
	// and asking again makes it two.
	open int
}

// Dial connects from the place to address ("IP:port") over network ("tcp", "udp"
// or, where the kernel has it, "sctp"), asks once and closes. It waits until ctx's deadline, 2.5 s without
// one.
func (p *Place) Dial(ctx context.Context, network, address string) (Answer, error) {
	return p.DialFrom(ctx, "", network, address)
}

// DialFrom is Dial from the given local address ("IP", "IP:port" or "" for any).
func (p *Place) DialFrom(ctx context.Context, local, network, address string) (Answer, error) {
	conn, err := p.connectTo(ctx, local, network, address)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	answer, err := conn.Ask(ctx)
	if err != nil {
		return Answer{}, fmt.Errorf("%s %s from %s: %w", network, address, p.name, err)
	}
	return answer, nil
}

// Transport makes HTTP requests from the place, each by a connection of its own.
func (p *Place) Transport() *http.Transport {
	return &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = p.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}}
}

// Get reads what a web server reports, which has to be well: with any other status
// than 200 it fails. See Fetch for what a server reports about its problems.
func (p *Place) Get(ctx context.Context, url string) (string, error) {
	status, text, err := p.Fetch(ctx, url)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s reports %d: %s", url, status, strings.TrimSpace(text))
	}
	return text, err
}

// Total reads metrics and returns the sum of all series of one; 0: there are none.
func (p *Place) Total(ctx context.Context, url, metric string) (int, error) {
	text, err := p.Get(ctx, url)
	sum := 0.0
	for _, found := range regexp.MustCompile(`(?m)^`+metric+`(?:\{.*\})? (\S+)$`).FindAllStringSubmatch(text, -1) {
		n, wrong := strconv.ParseFloat(found[1], 64)
		sum, err = sum+n, errors.Join(err, wrong)
	}
	return int(sum), err
}

// Fetch reads what a web server reports, well or not.
func (p *Place) Fetch(ctx context.Context, url string) (status int, text string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	response, err := p.Transport().RoundTrip(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// Connect opens a connection and keeps it open: see Conn.Ask.
func (p *Place) Connect(ctx context.Context, network, address string) (*Conn, error) {
	return p.connectTo(ctx, "", network, address)
}

func (p *Place) connectTo(ctx context.Context, local, network, address string) (*Conn, error) {
	// A name would be looked up by another thread, in another namespace.
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("dialing from %s: %w", p.name, err)
	}
	socket := watched{fd: -1}
	dialer := net.Dialer{Deadline: deadline(ctx), ControlContext: socket.control}
	if local != "" {
		if dialer.LocalAddr, err = localAddr(network, local); err != nil {
			return nil, fmt.Errorf("dialing from %s: %w", p.name, err)
		}
	}
	var conn net.Conn
	err = p.Do(func() (err error) {
		if network == "sctp" {
			conn, err = sctp.Dial(address, dialer.Deadline)
			return err
		}
		conn, err = dialer.DialContext(ctx, network, address)
		return err
	})
	from, known := socket.end()
	if err != nil {
		err = classify(err)
		if known && errors.Is(err, ErrNoAnswer) {
			err = &Unanswered{From: from, To: to, err: err}
		}
		return nil, fmt.Errorf("%s %s from %s: %w", network, address, p.name, err)
	}
	return &Conn{conn: conn, reader: bufio.NewReader(conn)}, nil
}

// Ask sends one line or datagram and returns the answer.
func (c *Conn) Ask(ctx context.Context) (Answer, error) {
	until := deadline(ctx)
	if _, udp := c.conn.(*net.UDPConn); !udp {
		return c.ask(until)
	}
	// A datagram may get lost; TCP repeats what is lost by itself.
	for {
		try := time.Now().Add(time.Second)
		if try.After(until) {
			try = until
		}
		answer, err := c.ask(try)
		if !errors.Is(err, ErrNoAnswer) || !time.Now().Before(until) {
			return answer, err
		}
	}
}

func (c *Conn) ask(until time.Time) (Answer, error) {
	if err := c.conn.SetDeadline(until); err != nil {
		return Answer{}, err
	}
	if _, err := c.conn.Write([]byte("?\n")); err != nil {
		return Answer{}, classify(err)
	}
	c.open++
	line, err := c.reader.ReadString('\n')
	if err != nil {
		return Answer{}, classify(err)
	}
	c.open--
	server, client, _ := strings.Cut(strings.TrimSpace(line), " ")
	addr, err := netip.ParseAddrPort(client)
	if err != nil {
		return Answer{}, fmt.Errorf("the server reports %q: %w", line, err)
	}
	return Answer{Server: server, Client: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())}, nil
}

// Repeats returns how often TCP had to send something again on this connection.
// Right after Connect it reports whether first packets got lost, to rules that
// drop or to no rules at all: that costs a second, and is no failure by itself.
func (c *Conn) Repeats() (int, error) {
	tcp, ok := c.conn.(*net.TCPConn)
	if !ok {
		return 0, errors.New("only TCP repeats")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0, err
	}
	var info *unix.TCPInfo
	var infoErr error
	err = raw.Control(func(fd uintptr) {
		info, infoErr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if err := errors.Join(err, infoErr); err != nil {
		return 0, fmt.Errorf("asking the kernel about a connection: %w", err)
	}
	return int(info.Total_retrans), nil
}

// FirstArrived returns an error if TCP had to send first packets again, as where
// the rules drop them. Right after Connect, and of TCP alone.
func (c *Conn) FirstArrived() error {
	repeats, err := c.Repeats()
	if err == nil && repeats > 0 {
		err = errors.New("its first packet was lost")
	}
	return err
}

// Hold asks every so often, with that much patience for each answer, until ctx is
// done or an answer is wrong: the connection must not break, and not move to
// another server. It calls report for each question with the time it was asked.
func (c *Conn) Hold(ctx context.Context, every, patience time.Duration, report func(asked time.Time, err error)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var first *Answer
	for {
		asked := time.Now()
		// What has been asked is waited for after the end.
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		answer, err := c.Ask(asking)
		cancel()
		if err == nil && first != nil && answer != *first {
			err = fmt.Errorf("answered by %s, before by %s", answer, *first)
		}
		report(asked, err)
		if err != nil {
			return
		}
		first = &answer
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Lost returns how many datagrams of Ask have got no answer, after waiting some
// time for late ones. Ask repeats what has no answer in time: that costs a second,
// and is no failure by itself.
func (c *Conn) Lost(wait time.Duration) (int, error) {
	if err := c.conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return 0, err
	}
	for c.open > 0 {
		_, err := c.reader.ReadString('\n')
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return 0, classify(err)
		}
		c.open--
	}
	return c.open, nil
}

// Read and Write make it a connection for other protocols than the echo server's.
func (c *Conn) Read(to []byte) (int, error) { return c.reader.Read(to) }

// Write's error is returned by Read.
func (c *Conn) Write(text []byte) (int, error) { return c.conn.Write(text) }

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// Abort ends a TCP connection without ceremony, so that kernels forget it soon.
func (c *Conn) Abort() error {
	if tcp, ok := c.conn.(*net.TCPConn); ok {
		return errors.Join(tcp.SetLinger(0), tcp.Close())
	}
	return c.conn.Close()
}

// deadline is ctx's, or one that suits a single connection.
func deadline(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok {
		return d
	}
	return time.Now().Add(dialTimeout)
}

func localAddr(network, local string) (net.Addr, error) {
	addrPort, err := netip.ParseAddrPort(local)
	if err != nil {
		addr, err := netip.ParseAddr(local)
		if err != nil {
			return nil, fmt.Errorf("local address: %w", err)
		}
		addrPort = netip.AddrPortFrom(addr, 0)
	}
	if strings.HasPrefix(network, "udp") {
		return net.UDPAddrFromAddrPort(addrPort), nil
	}
	return net.TCPAddrFromAddrPort(addrPort), nil
}

// classify reports in one of our errors how a connection failed.
func classify(err error) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return fmt.Errorf("%w: %w", ErrRejected, err)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return fmt.Errorf("%w: %w", ErrNoAnswer, err)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	default:
		return err
	}
}

package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// answers waits until one of the given servers answers a new connection; any if
// none is given.
func (t test) answers(from *cluster.Place, network, address string, servers ...string) {
	t.Helper()
	t.until(func(ctx context.Context) error { return answer(ctx, from, network, address, servers...) })
}

// answered makes one connection to a Service that is programmed, which one of the given servers must
// answer; any if none is given. It is aborted, as that of answer.
func (t test) answered(from *cluster.Place, network, address string, servers ...string) {
	t.Helper()
	conn, got := t.connect(from, network, address)
	defer func() { _ = conn.Abort() }() // it has served its purpose
	if len(servers) > 0 && !slices.Contains(servers, got.Server) {
		t.Errorf("%s %s from %s: %s answers, want %v", network, address, from.Name(), got.Server, servers)
	}
}

// answer returns nil if one of the given servers answers a new connection. It does
// not wait long: a connection that began before there were rules never meets them. It
// is aborted, because IPVS remembers for two minutes what has ended in good order, and
// waits for it where the mode ends.
func answer(ctx context.Context, from *cluster.Place, network, address string, servers ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := from.Connect(ctx, network, address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Abort() }() // it has served its purpose
	got, err := conn.Ask(ctx)
	if err == nil && len(servers) > 0 && !slices.Contains(servers, got.Server) {
		err = fmt.Errorf("%s answers at %s, want %v", got, address, servers)
	}
	return err
}

// rejected waits until connections are rejected. If IPVS rejects what a node itself sends by
// UDP, sending fails.
func (t test) rejected(from *cluster.Place, network, address string) {
	t.Helper()
	if network == "udp" && slices.ContainsFunc(t.cluster.Nodes(), func(n *cluster.Node) bool { return n.Place == from }) {
		t.fails(from, network, address, syscall.EPERM)
	} else {
		t.fails(from, network, address, cluster.ErrRejected)
	}
}

// silent waits until there is no answer.
func (t test) silent(from *cluster.Place, network, address string) {
	t.Helper()
	t.fails(from, network, address, cluster.ErrNoAnswer)
}

func (t test) fails(from *cluster.Place, network, address string, want error) {
	t.Helper()
	t.until(func(ctx context.Context) error {
		if err := answer(ctx, from, network, address); !errors.Is(err, want) {
			return fmt.Errorf("%s %s from %s: %w, want: %w", network, address, from.Name(), err, want)
		}
		return nil
	})
}

// seen expects the server to see the client at one of some addresses.
func (t test) seen(from *cluster.Place, address string, want ...string) {
	t.Helper()
	conn, got := t.connect(from, "tcp", address)
	t.abort(conn)
	if !slices.Contains(want, got.Client.Addr().String()) {
		t.Errorf("%s at %s, want one of %q", got, address, want)
	}
}

// sequence makes connections one after the other, all of which have to succeed, and
// returns who answered.
func (t test) sequence(from *cluster.Place, network, address string, count int) []string {
	t.Helper()
	var servers []string
	for range count {
		conn, got := t.connect(from, network, address)
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		servers = append(servers, got.Server)
	}
	return servers
}

// hold opens a connection that ends with the test at the latest, and asks once.
func (t test) hold(from *cluster.Place, network, address string) (*cluster.Conn, string) {
	t.Helper()
	conn, got := t.connect(from, network, address)
	t.Cleanup(func() { _ = conn.Abort() }) // it may have ended
	return conn, got.Server
}

// connect opens a connection and asks once. A busy machine may take its time for that, but
// no packet may be lost, unless the machine stands still.
func (t test) connect(from *cluster.Place, network, address string) (*cluster.Conn, cluster.Answer) {
	t.Helper()
	var conn *cluster.Conn
	var got cluster.Answer
	if _, err := t.pulse.Try(address, func(time.Time) (err error) {
		conn, got, err = t.tryConnect(from, network, address)
		return cmp.Or(err, load.Planted())
	}); err != nil {
		t.lost(address, err)
	}
	return conn, got
}

func (t test) tryConnect(from *cluster.Place, network, address string) (*cluster.Conn, cluster.Answer, error) {
	ctx, cancel := context.WithTimeout(t.Context(), load.Patience)
	defer cancel()
	conn, err := from.Connect(ctx, network, address)
	if err != nil {
		return nil, cluster.Answer{}, err
	}
	var got cluster.Answer
	if network == "tcp" {
		err = conn.FirstArrived()
	}
	if err == nil {
		if got, err = conn.Ask(ctx); err != nil {
			err = fmt.Errorf("the connection was accepted, but its first question has no answer: %w", err)
		}
	}
	if err != nil {
		return nil, cluster.Answer{}, errors.Join(err, conn.Abort())
	}
	return conn, got, nil
}

// lost ends the test because of a lost connection, with what the nodes' kernels know of it: what has
// the client's port if that is known, else what has the address.
func (t test) lost(address string, err error) {
	t.Helper()
	about, _, _ := net.SplitHostPort(address)
	unanswered, known := errors.AsType[*cluster.Unanswered](err)
	for _, node := range t.cluster.Nodes() {
		for _, command := range [][]string{{"ipvsadm", "-S", "-n"}, {"ipvsadm", "-L", "-n", "-c"}, {"conntrack", "-L"}} {
			text, err := node.Exec(t.Context(), command[0], command[1:]...)
			for line := range strings.Lines(text) {
				relevant := strings.Contains(line, about)
				if known && command[1] == "-L" {
					relevant = hasPort(line, unanswered.From.Port())
				}
				if relevant {
					t.Logf("%s, %s: %s", node.Name(), strings.Join(command, " "), strings.TrimSpace(line))
				}
			}
			if err != nil {
				t.Logf("%s, %s: %v", node.Name(), strings.Join(command, " "), err)
			}
		}
	}
	load.FatalLoss(t, "%v", t.cluster.Trace(t.Context(), err))
}

// hasPort reports whether a line of ipvsadm or conntrack has a port.
func hasPort(line string, port uint16) bool {
	number := strconv.Itoa(int(port))
	return slices.ContainsFunc(strings.FieldsFunc(line, func(r rune) bool { return r < '0' || r > '9' }), func(s string) bool { return s == number })
}

// ask asks once on an open connection and returns who answers.
func (t test) ask(conn *cluster.Conn) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), load.Patience)
	defer cancel()
	got, err := conn.Ask(ctx)
	if err != nil {
		load.FatalLoss(t, "on an open connection: %v", err)
	}
	return got.Server
}

// tally counts how often each name is there.
func tally(names []string) map[string]int {
	counts := map[string]int{}
	for _, name := range names {
		counts[name]++
	}
	return counts
}

// names are the sorted names that are there.
func names(of []string) []string { return slices.Sorted(maps.Keys(tally(of))) }

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
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

// refused waits until connections are rejected. If IPVS rejects what a node itself sends by
// UDP, sending fails.
func (t test) refused(from *cluster.Place, network, address string) {
	t.Helper()
	if network == "udp" && slices.ContainsFunc(t.cluster.Nodes(), func(n *cluster.Node) bool { return n.Place == from }) {
		t.fails(from, network, address, syscall.EPERM)
	} else {
		t.fails(from, network, address, cluster.ErrRefused)
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

// seen waits until a server answers that sees the client as want says.
func (t test) seen(from *cluster.Place, address, want string) {
	t.Helper()
	t.until(func(ctx context.Context) error {
		got, err := from.Dial(ctx, "tcp", address)
		if err == nil && got.Client.Addr().String() != want {
			err = fmt.Errorf("%s at %s, want %s", got, address, want)
		}
		return err
	})
}

// sequence makes connections one after the other, all of which have to succeed, and
// returns who answered.
func (t test) sequence(from *cluster.Place, network, address string, count int) []string {
	t.Helper()
	var servers []string
	for range count {
		conn, server := t.connect(from, network, address)
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		servers = append(servers, server)
	}
	return servers
}

// hold opens a connection that ends with the test at the latest, and asks once.
func (t test) hold(from *cluster.Place, network, address string) (*cluster.Conn, string) {
	t.Helper()
	conn, server := t.connect(from, network, address)
	t.Cleanup(func() { _ = conn.Abort() }) // it may have ended
	return conn, server
}

// connect opens a connection and asks once. A busy machine may take its time for that, but
// no packet may be lost.
func (t test) connect(from *cluster.Place, network, address string) (*cluster.Conn, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), load.Patience)
	defer cancel()
	conn, err := from.Connect(ctx, network, address)
	if err != nil {
		t.lost(address, err)
	}
	if network == "tcp" {
		if err := conn.FirstArrived(); err != nil {
			t.lost(address, err)
		}
	}
	got, err := conn.Ask(ctx)
	if err != nil {
		t.lost(address, fmt.Errorf("the connection was accepted, but its first question has no answer: %w", err))
	}
	return conn, got.Server
}

// lost ends the test because of a lost connection, with what the nodes' kernels know of it.
func (t test) lost(address string, err error) {
	t.Helper()
	for _, node := range t.cluster.Nodes() {
		for _, command := range [][]string{{"ipvsadm", "-S", "-n"}, {"ipvsadm", "-L", "-n", "-c"}, {"conntrack", "-L"}} {
			text, err := node.Exec(t.Context(), command[0], command[1:]...)
			ip, _, _ := net.SplitHostPort(address)
			for line := range strings.Lines(text) {
				if strings.Contains(line, ip) {
					t.Logf("%s, %s: %s", node.Name(), strings.Join(command, " "), strings.TrimSpace(line))
				}
			}
			if err != nil {
				t.Logf("%s, %s: %v", node.Name(), strings.Join(command, " "), err)
			}
		}
	}
	load.FatalLoss(t, "%v", err)
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

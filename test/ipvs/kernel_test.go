package ipvs

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// server is a virtual server, as ipvsadm shows it.
type server struct {
	// rule is what ipvsadm -S prints of it: scheduler, persistence and flags.
	rule  string
	conns int // so far
	reals map[string]realServer
}

// realServer is a real server.
type realServer struct{ weight, active, inactive int }

// key names a virtual server: "TCP 10.96.0.1:80".
func key(network, address string) string { return strings.ToUpper(network) + " " + address }

// protocols are the options of ipvsadm.
var protocols = map[string]string{"-t": "TCP", "-u": "UDP", "--sctp-service": "SCTP"}

// servers returns the virtual servers of a node.
func servers(ctx context.Context, node *cluster.Node) (map[string]*server, error) {
	out := map[string]*server{}
	rules, err := node.Exec(ctx, "ipvsadm", "-S", "-n")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(rules) {
		words := strings.Fields(line)
		if len(words) > 3 && words[0] == "-A" {
			out[protocols[words[1]]+" "+words[2]] = &server{rule: strings.Join(words[3:], " "), reals: map[string]realServer{}}
		}
	}
	var now *server
	err = table(ctx, node, "", func(protocol, address string, _ []string) {
		now = out[protocol+" "+address]
	}, func(address string, words []string) {
		if now != nil && len(words) == 4 {
			now.reals[address] = realServer{number(words[1]), number(words[2]), number(words[3])}
		}
	})
	if err != nil {
		return nil, err
	}
	return out, table(ctx, node, "--stats", func(protocol, address string, words []string) {
		if s := out[protocol+" "+address]; s != nil && len(words) > 0 {
			s.conns = number(words[0])
		}
	}, func(string, []string) {})
}

var (
	virtualLine = regexp.MustCompile(`^(TCP|UDP|SCTP)\s+(\S+)\s*(.*)$`)
	realLine    = regexp.MustCompile(`^\s+->\s+(\S+:\d+)\s+(.*)$`)
)

// table reads a table of ipvsadm and calls a function for each virtual server, and
// one for each real server of the last one, with what follows the address.
func table(ctx context.Context, node *cluster.Node, option string, virtual func(string, string, []string), each func(string, []string)) error {
	args := []string{"-L", "-n", "--exact"}
	if option != "" {
		args = append(args, option)
	} else {
		args = args[:2]
	}
	text, err := node.Exec(ctx, "ipvsadm", args...)
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := virtualLine.FindStringSubmatch(line); m != nil {
			virtual(m[1], m[2], strings.Fields(m[3]))
		} else if m := realLine.FindStringSubmatch(line); m != nil {
			each(m[1], strings.Fields(m[2]))
		}
	}
	return nil
}

func number(word string) int {
	n, err := strconv.Atoi(word)
	if err != nil {
		return -1
	}
	return n
}

// virtual returns a virtual server of a node.
func virtual(ctx context.Context, node *cluster.Node, network, address string) (*server, error) {
	all, err := servers(ctx, node)
	if err != nil {
		return nil, err
	}
	s := all[key(network, address)]
	if s == nil {
		return nil, fmt.Errorf("%s has no virtual server %s", node.Name(), key(network, address))
	}
	return s, nil
}

// weight waits until a real server has a weight; -1: until it is gone.
func (t test) weight(node *cluster.Node, network, address, backend string, want int) {
	t.Helper()
	t.until(func(ctx context.Context) error {
		s, err := virtual(ctx, node, network, address)
		if err != nil {
			return err
		}
		r, there := s.reals[backend]
		switch {
		case want < 0 && there:
			return fmt.Errorf("%s is still a real server: %+v", backend, r)
		case want >= 0 && (!there || r.weight != want):
			return fmt.Errorf("of %s the real servers are %+v; want weight %d of %s", key(network, address), s.reals, want, backend)
		}
		return nil
	})
}

// exec runs a program on a node, which has to succeed.
func (t test) exec(node *cluster.Node, name string, args ...string) string {
	t.Helper()
	out, err := node.Exec(t.Context(), name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// entries counts the entries of all ipsets of a node.
func entries(ctx context.Context, node *cluster.Node) (int, error) {
	text, err := node.Exec(ctx, "ipset", "save")
	return strings.Count("\n"+text, "\nadd "), err
}

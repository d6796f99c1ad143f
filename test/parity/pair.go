package parity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/parity/rules"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// start is how a world finds the two proxies.
type start int

const (
	// startClean starts both with no rule in the kernel.
	startClean start = iota
	// startOver starts both on the rules that they left.
	startOver
	// startLive starts kube-proxy, which has to be restarted for other
	// settings, on the rules that it left; nodeproxy-agent runs on and follows.
	startLive
)

func (s start) String() string {
	return [...]string{
		"both started without rules", "both started on the rules of the world before",
		"kube-proxy restarted on the rules of the world before, nodeproxy-agent went on",
	}[s]
}

// pair is kube-proxy on one node and nodeproxy-agent on another one, which
// differ in nothing that rules depend on.
type pair struct {
	nodeproxy  *install.Nodeproxy
	kubeProxy  string // path of the program
	kubeconfig string // of kube-proxy

	reference, tested   *cluster.Node
	referenceP, testedP *cluster.Process

	liberal bool // the sysctl as the agent found it
	guest   bool // the guest addresses are there
}

// newPair gives both nodes the addresses of the one that they stand for.
func newPair(n *install.Nodeproxy, kubeProxy string) (*pair, error) {
	p := &pair{nodeproxy: n, kubeProxy: kubeProxy, reference: n.Cluster.Node(0), tested: n.Cluster.Node(1)}
	var err error
	if p.kubeconfig, err = n.Cluster.KubeconfigFor("kube-proxy", "system:kube-proxy"); err != nil {
		return nil, err
	}
	for _, node := range p.nodes() {
		if err := node.Do(worlds.MakeNode); err != nil {
			return nil, fmt.Errorf("giving %s the node's addresses: %w", node.Name(), err)
		}
	}
	return p, nil
}

// nodes are the two, which are one where both programs run on it.
func (p *pair) nodes() []*cluster.Node {
	if p.tested == p.reference {
		return []*cluster.Node{p.reference}
	}
	return []*cluster.Node{p.reference, p.tested}
}

// setGuest gives both nodes the guest addresses, or takes them away.
func (p *pair) setGuest(there bool) error {
	if p.guest == there {
		return nil
	}
	p.guest = there
	for _, node := range p.nodes() {
		if err := node.Do(func() error { return worlds.SetGuests(there) }); err != nil {
			return fmt.Errorf("guest addresses of %s: %w", node.Name(), err)
		}
	}
	return nil
}

// possible returns the start that comes closest to what is asked for: neither
// program follows the sysctl, which an operator sets before.
func (p *pair) possible(s start, to worlds.Settings) start {
	if s == startLive && p.liberal != to.Liberal {
		return startOver
	}
	return s
}

// stop stops kube-proxy and, unless a live start follows, the agent, and
// removes the rules where a clean start follows.
func (p *pair) stop(ctx context.Context, next start) error {
	err := end(&p.referenceP)
	if next == startLive {
		return err
	}
	err = errors.Join(err, end(&p.testedP))
	if next == startClean {
		err = errors.Join(err, p.flush(ctx))
	}
	return err
}

// end stops a process unless it has ended, which its world has told.
func end(p **cluster.Process) error {
	proc := *p
	*p = nil
	if proc == nil || install.Running(proc) != nil {
		return nil
	}
	return proc.Stop()
}

// flush removes all rules and chains of both nodes.
func (p *pair) flush(ctx context.Context) error {
	for _, node := range p.nodes() {
		for _, tool := range []string{"iptables", "ip6tables"} {
			for _, table := range []string{"nat", "filter", "mangle"} {
				for _, what := range []string{"-F", "-X"} {
					if _, err := node.Exec(ctx, tool, "-w", "10", "-t", table, what); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// start starts what stop stopped, with the settings of a world.
func (p *pair) start(s worlds.Settings) error {
	liberal := "0"
	if s.Liberal {
		liberal = "1"
	}
	p.liberal = s.Liberal
	for _, node := range p.nodes() {
		err := node.Do(func() error {
			return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", []byte(liberal), 0)
		})
		if err != nil {
			return err
		}
	}
	config := filepath.Join(p.nodeproxy.Cluster.Dir(), "kube-proxy.yaml")
	if err := os.WriteFile(config, []byte(s.KubeProxy(p.kubeconfig, worlds.NodeName)), 0o600); err != nil {
		return err
	}
	var err error
	if p.referenceP, err = p.reference.Start(cluster.Command{Path: p.kubeProxy, Args: []string{"--config", config}}); err != nil {
		return err
	}
	if p.testedP != nil {
		return nil
	}
	return p.startAgent()
}

// startAgent starts nodeproxy-agent under the name of the common node.
func (p *pair) startAgent() error {
	command, err := p.nodeproxy.AgentCommand(p.tested)
	if err != nil {
		return err
	}
	command.Args = append(command.Args, "--node-name", worlds.NodeName)
	p.testedP, err = p.tested.Start(command)
	return err
}

// running returns an error when one of the two has ended.
func (p *pair) running() error { return install.Running(p.referenceP, p.testedP) }

// saved is what iptables-save and ip6tables-save print on the two nodes.
type saved struct{ reference, tested map[worlds.Family]string }

func (p *pair) save(ctx context.Context) (saved, error) {
	out := saved{map[worlds.Family]string{}, map[worlds.Family]string{}}
	for _, f := range worlds.Families() {
		var err error
		if out.reference[f], err = p.reference.Exec(ctx, saveTool(f)); err != nil {
			return out, err
		}
		if out.tested[f], err = p.tested.Exec(ctx, saveTool(f)); err != nil {
			return out, err
		}
	}
	return out, nil
}

func saveTool(f worlds.Family) string {
	if f == worlds.IPv6 {
		return "ip6tables-save"
	}
	return "iptables-save"
}

// parsedWith returns the rules of a node, or an error that wraps errNotSeen if
// they lack the mark. Looking for it first costs little while one is waited for.
func parsedWith(ctx context.Context, node *cluster.Node, who string, f worlds.Family, m worlds.Mark) (rules.Rules, error) {
	text, err := node.Exec(ctx, saveTool(f))
	if err != nil {
		return nil, err
	}
	if !marked(m, f, text) {
		return nil, fmt.Errorf("%s %w (%s)", who, errNotSeen, f)
	}
	return rules.Parse(text)
}

// marked tells whether the rules of a family hold the mark.
func marked(m worlds.Mark, f worlds.Family, save string) bool {
	endpoint := worlds.MarkerEndpoint(f)
	if f == worlds.IPv6 {
		endpoint = "[" + endpoint + "]"
	}
	return strings.Contains(save, fmt.Sprintf("--to-destination %s:%d", endpoint, m.EndpointPort)) &&
		strings.Contains(save, fmt.Sprintf("--dport %d -j KUBE-SVC-", m.Port))
}

// errNotSeen means that a program has not written the mark yet.
var errNotSeen = errors.New("has not programmed the last change yet")

// look compares the rules of the two as they are now. It returns an error that
// wraps errNotSeen while one of them is behind.
func (p *pair) look(ctx context.Context, w *worlds.World, m worlds.Mark, fresh bool, met map[string]int) ([]rules.Difference, error) {
	var out []rules.Difference
	for _, f := range worlds.Families() {
		tested, err := parsedWith(ctx, p.tested, "nodeproxy-agent", f, m)
		if err != nil {
			return nil, err
		}
		reference, err := parsedWith(ctx, p.reference, "kube-proxy", f, m)
		if err != nil {
			return nil, err
		}
		s := situation{family: f, localhost: w.Settings.LocalhostInEffect(w.Node), fresh: fresh, large: w.Large(f)}
		takeWanted(s, reference, met)
		takeWanted(s, tested, map[string]int{})
		out = append(out, rules.Compare(string(f), reference, tested, rules.IPTablesOrder)...)
	}
	return out, nil
}

// settled waits until both have the mark and the same rules, and returns what
// differs at the deadline.
func (p *pair) settled(ctx context.Context, w *worlds.World, m worlds.Mark, fresh bool, limit time.Duration, met map[string]int) ([]rules.Difference, error) {
	var differences []rules.Difference
	once := map[string]int{}
	err := install.Until(ctx, limit, func(ctx context.Context) error {
		if err := p.running(); err != nil {
			return err
		}
		clear(once)
		now, err := p.look(ctx, w, m, fresh, once)
		if err != nil {
			return err
		}
		if differences = now; len(now) > 0 {
			return errDiffer
		}
		return nil
	})
	for name, n := range once {
		met[name] += n
	}
	if errors.Is(err, errDiffer) || len(differences) > 0 && ctx.Err() == nil && !errors.Is(err, install.ErrEnded) {
		return differences, nil
	}
	return nil, err
}

// errDiffer means that both have all changes and differ.
var errDiffer = errors.New("the rules differ")

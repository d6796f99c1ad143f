package beside

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// ErrNotSeen means that a program has not put the mark into its kernel yet.
var ErrNotSeen = errors.New("has not programmed the last change yet")

// Pair is kube-proxy and nodeproxy-agent, each on a node of its own or, after
// ShareNode, both on one. It is for one goroutine.
type Pair struct {
	// Nodeproxy is what they belong to.
	Nodeproxy *install.Nodeproxy
	// Writer writes the objects that both follow.
	Writer *worlds.Writer
	// KubeProxy and Agent are the two.
	KubeProxy, Agent Proxy

	kubeconfig string // of kube-proxy
	guests     bool   // the guest addresses are there
	audits     int    // when Reports last returned
}

// New gives the two nodes of an installation, which is one by Install, the addresses
// of the one that they stand for.
func New(n *install.Nodeproxy) (*Pair, error) {
	p := &Pair{
		Nodeproxy: n, Writer: worlds.NewWriter(n.Cluster.Client()),
		KubeProxy: Proxy{Name: "kube-proxy", Node: n.Cluster.Node(0)},
		Agent:     Proxy{Name: "nodeproxy-agent", Node: n.Cluster.Node(1)},
	}
	var err error
	if p.kubeconfig, err = n.Cluster.KubeconfigFor("kube-proxy", "system:kube-proxy"); err != nil {
		return nil, err
	}
	for _, node := range n.Cluster.Nodes() {
		if err := node.Do(worlds.MakeNode); err != nil {
			return nil, fmt.Errorf("giving %s the node's addresses: %w", node.Name(), err)
		}
	}
	return p, nil
}

// Clear takes the nodes' addresses and all objects but the settings away, so that New
// can be called again. The programs are stopped.
func (p *Pair) Clear(ctx context.Context) error {
	errs := []error{p.Writer.Clear(ctx)}
	for _, node := range p.Nodeproxy.Cluster.Nodes() {
		errs = append(errs, node.Do(worlds.UnmakeNode)) // the guest addresses go with it
	}
	return errors.Join(errs...)
}

// ShareNode lets the agent run on kube-proxy's node from now on.
func (p *Pair) ShareNode() { p.Agent.Node = p.KubeProxy.Node }

// proxies are the two.
func (p *Pair) proxies() []*Proxy { return []*Proxy{&p.KubeProxy, &p.Agent} }

// Nodes are those of kube-proxy and of the agent, or the one that they share.
func (p *Pair) Nodes() []*cluster.Node {
	if p.Agent.Node == p.KubeProxy.Node {
		return []*cluster.Node{p.KubeProxy.Node}
	}
	return []*cluster.Node{p.KubeProxy.Node, p.Agent.Node}
}

// OnNodes runs a script of the shell on each node.
func (p *Pair) OnNodes(ctx context.Context, script string) error {
	for _, node := range p.Nodes() {
		if _, err := node.Exec(ctx, "sh", "-c", script); err != nil {
			return err
		}
	}
	return nil
}

// setGuests gives the nodes the guest addresses, or takes them away.
func (p *Pair) setGuests(there bool) error {
	if p.guests == there {
		return nil
	}
	p.guests = there
	for _, node := range p.Nodes() {
		if err := node.Do(func() error { return worlds.SetGuests(there) }); err != nil {
			return fmt.Errorf("guest addresses of %s: %w", node.Name(), err)
		}
	}
	return nil
}

// Write makes the nodes and the API server hold a world, in an order that shuffle
// gives.
func (p *Pair) Write(ctx context.Context, w *worlds.World, shuffle *rand.Rand) (worlds.Mark, error) {
	if err := p.setGuests(w.Guest); err != nil {
		return worlds.Mark{}, err
	}
	return p.Writer.Write(ctx, w, shuffle)
}

// Start starts what does not run, under the name of the common node and kube-proxy
// with the settings of a world, and lets kube-proxy go on if it stands still.
func (p *Pair) Start(s worlds.Settings) error {
	var errs []error
	if p.KubeProxy.Process == nil {
		errs = append(errs, p.StartKubeProxy(s, worlds.NodeName))
	} else {
		errs = append(errs, p.KubeProxy.Thaw())
	}
	if p.Agent.Process == nil {
		args := []string{"--node-name", worlds.NodeName}
		if p.Agent.Node == p.KubeProxy.Node {
			args = append(args, "-v", "2") // see Audits
		}
		errs = append(errs, p.StartAgent(args...))
	}
	return errors.Join(errs...)
}

// StartKubeProxy starts kube-proxy with settings, under the name of a node.
func (p *Pair) StartKubeProxy(s worlds.Settings, node string) (err error) {
	c := p.Nodeproxy.Cluster
	config := filepath.Join(c.Dir(), "kube-proxy.yaml")
	if err := os.WriteFile(config, []byte(s.KubeProxy(p.kubeconfig, node)), 0o600); err != nil {
		return err
	}
	p.KubeProxy.Process, err = p.KubeProxy.Node.Start(cluster.Command{
		Path: filepath.Join(c.Assets(), string(binaries.KubeProxy)), Args: []string{"--config", config},
	})
	return err
}

// StartAgent starts nodeproxy-agent. Without arguments it serves under the name that
// its node has in the cluster.
func (p *Pair) StartAgent(args ...string) (err error) {
	p.Agent.Process, err = p.Nodeproxy.StartAgent(p.Agent.Node, args...)
	return err
}

// Stop stops what runs.
func (p *Pair) Stop() error { return errors.Join(p.KubeProxy.Stop(), p.Agent.Stop()) }

// Running returns an error that wraps install.ErrEnded when one of the two has ended
// by itself.
func (p *Pair) Running() error { return install.Running(p.Processes()...) }

// Processes are those that were started and not stopped.
func (p *Pair) Processes() (out []*cluster.Process) {
	for _, proxy := range p.proxies() {
		if proxy.Process != nil {
			out = append(out, proxy.Process)
		}
	}
	return out
}

// Tails are the ends of what the programs that run have written.
func (p *Pair) Tails() string {
	var out []string
	for _, proxy := range p.proxies() {
		if proxy.Process != nil {
			out = append(out, proxy.Name+", "+proxy.Process.Tail())
		}
	}
	return strings.Join(out, "\n")
}

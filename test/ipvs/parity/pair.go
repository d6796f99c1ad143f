package parity

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// pair is kube-proxy on one node and nodeproxy-agent on another one, which differ in
// nothing that matters to a proxy.
type pair struct {
	nodeproxy  *install.Nodeproxy
	kubeProxy  string // path of the program
	kubeconfig string // of kube-proxy
	writer     *worlds.Writer

	reference, tested   *cluster.Node
	referenceP, testedP *cluster.Process
	guest               bool // the guest addresses are there
}

// newPair gives both nodes the addresses of the one that they stand for.
func newPair(n *install.Nodeproxy) (*pair, error) {
	p := &pair{
		nodeproxy: n, kubeProxy: filepath.Join(n.Cluster.Assets(), "kube-proxy"), writer: worlds.NewWriter(n.Cluster.Client()),
		reference: n.Cluster.Node(0), tested: n.Cluster.Node(1),
	}
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

// startReference starts kube-proxy with settings, under the name of a node.
func (p *pair) startReference(s worlds.Settings, node string) error {
	config := filepath.Join(p.nodeproxy.Cluster.Dir(), "kube-proxy.yaml")
	if err := os.WriteFile(config, []byte(s.KubeProxy(p.kubeconfig, node)), 0o600); err != nil {
		return err
	}
	var err error
	p.referenceP, err = p.reference.Start(cluster.Command{Path: p.kubeProxy, Args: []string{"--config", config}})
	return err
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

// end stops a process unless it has ended, which its world has told.
func end(p **cluster.Process) error {
	proc := *p
	*p = nil
	if proc == nil || install.Running(proc) != nil {
		return nil
	}
	// One that stands still does not end.
	return errors.Join(syscall.Kill(proc.PID(), syscall.SIGCONT), proc.Stop())
}

// running returns an error when one of the two has ended.
func (p *pair) running() error {
	var live []*cluster.Process
	for _, proc := range []*cluster.Process{p.referenceP, p.testedP} {
		if proc != nil {
			live = append(live, proc)
		}
	}
	return install.Running(live...)
}

// flushScript removes all that proxies leave. To restore a table without rules
// removes its chains as well, by one program.
const flushScript = `for program in iptables-restore ip6tables-restore; do
printf '*nat\nCOMMIT\n*filter\nCOMMIT\n*mangle\nCOMMIT\n' | $program -w 10 || exit 1; done
ipvsadm -C && ipset destroy && ipvsadm --set 900 120 300 || exit 1
if ip link show dev kube-ipvs0 >/dev/null 2>&1; then ip link del dev kube-ipvs0 || exit 1; fi
for name in arp_ignore arp_announce; do echo 0 >/proc/sys/net/ipv4/conf/all/$name; done
for name in conntrack expire_nodest_conn expire_quiescent_template; do echo 0 >/proc/sys/net/ipv4/vs/$name; done
`

func (p *pair) flush(ctx context.Context) error {
	for _, node := range p.nodes() {
		if _, err := node.Exec(ctx, "sh", "-c", flushScript); err != nil {
			return err
		}
	}
	return nil
}

// addForeign gives both nodes the virtual servers of somebody else.
func (p *pair) addForeign(ctx context.Context) error {
	var b strings.Builder
	fmt.Fprintln(&b, "there=$(ipvsadm -Sn) || exit 1")
	for _, key := range foreign() {
		fmt.Fprintf(&b, "case $there in *'%s '*) ;; *) ipvsadm -A %s -s rr || exit 1 ;; esac\n", key, key)
	}
	for _, node := range p.nodes() {
		if _, err := node.Exec(ctx, "sh", "-c", b.String()); err != nil {
			return err
		}
	}
	return nil
}

// reset takes away all that newPair and the programs made, and the objects.
func (p *pair) reset(ctx context.Context) error {
	errs := []error{p.setGuest(false)}
	p.reference, p.tested = p.nodeproxy.Cluster.Node(0), p.nodeproxy.Cluster.Node(1)
	errs = append(errs, p.flush(ctx), p.writer.Clear(ctx))
	for _, node := range p.nodes() {
		errs = append(errs, node.Do(worlds.UnmakeNode))
	}
	return errors.Join(errs...)
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

// write makes the API server hold the world. kube-proxy stands still from then on,
// until start, so that it takes all changes in as few syncs as it can.
func (p *pair) write(ctx context.Context, w *worlds.World, shuffle *rand.Rand) (worlds.Mark, error) {
	if p.referenceP != nil {
		if err := syscall.Kill(p.referenceP.PID(), syscall.SIGSTOP); err != nil {
			return worlds.Mark{}, fmt.Errorf("letting kube-proxy stand still: %w", err)
		}
	}
	if err := p.setGuest(w.Guest); err != nil {
		return worlds.Mark{}, err
	}
	return p.writer.Write(ctx, w, shuffle)
}

// start starts what does not run, and lets kube-proxy go on.
func (p *pair) start(s worlds.Settings) error {
	var errs []error
	if p.referenceP == nil {
		errs = append(errs, p.startReference(s, worlds.NodeName))
	} else if err := syscall.Kill(p.referenceP.PID(), syscall.SIGCONT); err != nil {
		errs = append(errs, fmt.Errorf("letting kube-proxy go on: %w", err))
	}
	if p.testedP == nil {
		errs = append(errs, p.startAgent())
	}
	return errors.Join(errs...)
}

// errNotSeen means that a program has not written the mark yet.
var errNotSeen = errors.New("has not programmed the last change yet")

// settled waits until both have the mark and hold the same, and returns what differs
// at the deadline. It looks when both rest, because looking takes as long as a sync.
func (p *pair) settled(ctx context.Context, s situation, m worlds.Mark, limit time.Duration, met map[string]int) ([]difference, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var differences []difference
	last := errNotSeen
	for {
		if err := p.rest(ctx); err != nil {
			if ctx.Err() != nil {
				return differences, last
			}
			return nil, err
		}
		var once map[string]int
		differences, once, last = p.look(context.WithoutCancel(ctx), s, m)
		switch {
		case last == nil && len(differences) == 0:
			for name, n := range once {
				met[name] += n
			}
			return nil, nil
		case last != nil && !errors.Is(last, errNotSeen):
			return nil, last
		}
	}
}

// look compares what the two hold now. The marks come first, because they need one
// program, and all needs many.
func (p *pair) look(ctx context.Context, s situation, m worlds.Mark) ([]difference, map[string]int, error) {
	for _, node := range p.nodes() {
		who := map[bool]string{true: "kube-proxy", false: "nodeproxy-agent"}[node == p.reference]
		now, err := readServers(ctx, node)
		if err != nil {
			return nil, nil, err
		}
		for _, f := range worlds.Families() {
			if !now.marked(m, f) {
				return nil, nil, fmt.Errorf("%s %w (%s)", who, errNotSeen, f)
			}
		}
	}
	var states []*state
	for _, node := range p.nodes() {
		now, err := read(ctx, node)
		if err != nil {
			return nil, nil, err
		}
		states = append(states, now)
	}
	reference, tested := states[0], states[len(states)-1]
	once := map[string]int{}
	takeWanted(s, reference, tested, once)
	return compare(reference, tested), once, nil
}

const (
	// pause is between two looks at how much the programs have worked.
	pause = 100 * time.Millisecond
	// resting is for how many of these they have hardly worked when they rest.
	resting = 4
)

// rest waits until the programs rest.
func (p *pair) rest(ctx context.Context) error {
	for quiet, before := 0, int64(0); quiet < resting; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		if err := p.running(); err != nil {
			return err
		}
		now := p.worked()
		quiet++
		if now > before+1 {
			quiet = 0
		}
		before = now
	}
	return nil
}

// worked is the time that the programs, and those that they ran, have had of the
// processor, in hundredths of a second.
func (p *pair) worked() (sum int64) {
	for _, proc := range []*cluster.Process{p.referenceP, p.testedP} {
		if proc == nil {
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", proc.PID()))
		if err != nil {
			continue // it has ended, which running tells
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		const userTime = 11 // then those of the system, and both of children
		if words := strings.Fields(rest); len(words) > userTime+4 {
			for _, word := range words[userTime : userTime+4] {
				n, _ := strconv.ParseInt(word, 10, 64) // a number
				sum += n
			}
		}
	}
	return sum
}

// tails are the ends of the logs of both.
func (p *pair) tails() string {
	var out []string
	for _, proc := range []*cluster.Process{p.referenceP, p.testedP} {
		if proc != nil {
			out = append(out, proc.Tail())
		}
	}
	return strings.Join(out, "\n")
}

package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/load"
	"github.com/nodeproxy-io/nodeproxy/test/programs"
)

// options describe a cluster.
type options struct {
	nodes   int
	more    int  // Services of ten endpoints each without connections
	standby bool // two controllers
	large   bool // Services of up to 500 endpoints
	jumping bool // clocks that can be set
	mode    v1alpha1.ProxyMode
}

// controllerMetrics is where a controller without a standby serves metrics.
const controllerMetrics = "127.0.0.1:8080"

// world is a cluster in which nodeproxy runs and Services are used. The first
// node has the nf_tables variant of iptables, the second the legacy one, and so
// on in turn.
type world struct {
	options
	ctx       context.Context
	nodeproxy *install.Nodeproxy
	cluster   *cluster.Cluster
	random    *rand.Rand

	agents      map[string]*cluster.Process // by node
	started     map[string]time.Time        // of the agents
	controllers []*cluster.Process          // the leader first

	targets  []load.Target
	changing []*cluster.Pod // of Service changing
	large    []*largeService
	proofs   int // Services made to see that changes come through
}

// build makes the programs.
func build(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	if err := programs.Into(t.Context(), bin, programs.Controller, programs.Agent); err != nil {
		t.Fatal(err)
	}
	return bin
}

// newWorld makes a cluster that goes with the test.
func newWorld(t *testing.T, bin string, o options) *world {
	t.Helper()
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGINT, syscall.SIGTERM)
	t.Cleanup(stop)
	scheme, err := install.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(ctx, cluster.Options{Nodes: o.nodes, Scheme: scheme, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	config, err := filepath.Abs(filepath.Join("..", "..", "config"))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{options: o, ctx: ctx, cluster: c,
		nodeproxy: &install.Nodeproxy{Cluster: c, Bin: bin, Config: config, Mode: o.mode},
		agents:    map[string]*cluster.Process{}, started: map[string]time.Time{}}
	for _, step := range []func() error{
		func() error { return w.nodeproxy.Prepare(ctx) }, func() error { return w.nodeproxy.Enable(ctx) },
		w.startControllers, w.makeServices, w.makeMore, w.makeLarge, w.startAgents,
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// legacy reports whether a node has the legacy variant of iptables.
func (w *world) legacy(node *cluster.Node) bool {
	return slices.Index(w.cluster.Nodes(), node)%2 == 1
}

func (w *world) variant(node *cluster.Node) string {
	if w.legacy(node) {
		return "legacy"
	}
	return "nf_tables"
}

// called is how remarks name a node.
func (w *world) called(node *cluster.Node) string {
	if w.mode == v1alpha1.ModeNFTables {
		return node.Name()
	}
	return w.variant(node)
}

// startControllers starts the leader, and then, if there is to be one, the
// standby.
func (w *world) startControllers() error {
	if err := w.startController(); err != nil || !w.standby {
		return err
	}
	err := install.Until(w.ctx, time.Minute, func(ctx context.Context) error {
		np := &v1alpha1.NodeProxy{}
		if err := w.cluster.Client().Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, np); err != nil {
			return err
		}
		if np.Status.Inventory == nil {
			return errors.New("the controller does not work yet")
		}
		return nil
	})
	if err != nil {
		return err
	}
	return w.startController()
}

// startController starts one more.
func (w *world) startController() error {
	metrics := "0"
	if !w.standby { // two cannot share the address
		metrics = controllerMetrics
	}
	process, err := w.nodeproxy.StartController("--metrics-bind-address", metrics, "--health-probe-bind-address", "0")
	if err != nil {
		return err
	}
	w.controllers = append(w.controllers, process)
	return nil
}

func (w *world) startAgents() error {
	for _, node := range w.cluster.Nodes() {
		if err := w.startAgent(node); err != nil {
			return err
		}
	}
	return nil
}

// startAgent starts a node's agent, by the given command before its own if there
// is one.
func (w *world) startAgent(node *cluster.Node, before ...string) error {
	command, err := w.nodeproxy.AgentCommand(node)
	if err != nil {
		return err
	}
	command.Args = append(command.Args, "--iptables-variant", w.variant(node), "-v", "2")
	command.Env = []string{"XTABLES_LOCKFILE=" + w.lockPath(node)}
	if len(before) > 0 {
		command.Name = filepath.Base(command.Path)
		command.Args = append(append(slices.Clone(before[1:]), command.Path), command.Args...)
		command.Path = before[0]
	}
	w.started[node.Name()] = time.Now()
	w.agents[node.Name()], err = node.Start(command)
	return err
}

// stateDirectory is the directory of a node's agent.
func (w *world) stateDirectory(node *cluster.Node) string {
	return filepath.Join(w.cluster.Dir(), "state-"+node.Name())
}

// lockPath is a node's lock of the legacy variant, of which a machine usually
// has one: /run/xtables.lock.
func (w *world) lockPath(node *cluster.Node) string {
	return filepath.Join(w.cluster.Dir(), node.Name()+".xtables.lock")
}

// running returns an error if a process of nodeproxy has ended by itself.
func (w *world) running() error {
	processes := slices.Clone(w.controllers)
	for _, agent := range w.agents {
		processes = append(processes, agent)
	}
	return install.Running(processes...)
}

// reported returns nil when the present agent of each node reports that its kernel
// has the desired state.
func (w *world) reported(ctx context.Context) error {
	for _, node := range w.cluster.Nodes() {
		rules := &v1alpha1.NodeProxyRules{}
		if err := w.cluster.Client().Get(ctx, client.ObjectKey{Name: node.Name()}, rules); err != nil {
			return err
		}
		c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
		agent := rules.Status.Agent
		if c == nil || agent == nil || agent.StartTime.Time.Before(w.started[node.Name()].Truncate(time.Second)) {
			return fmt.Errorf("the agent of %s has not reported since it was started", node.Name())
		}
		if c.Status != "True" || c.Reason != v1alpha1.ReasonProgrammed {
			return fmt.Errorf("%s: Programmed is %s, %s: %s", node.Name(), c.Status, c.Reason, c.Message)
		}
	}
	return nil
}

// serving returns the rules of each node once they lead to the endpoints that Services and
// EndpointSlices have, and for policy Local to those on the node.
func (w *world) serving(ctx context.Context) (map[string][]string, error) {
	out := map[string][]string{}
	for _, node := range w.cluster.Nodes() {
		desired, err := w.desired(ctx, node)
		if err != nil {
			return nil, err
		}
		rules, err := w.saved(ctx, node)
		if err != nil {
			return nil, err
		}
		if d := difference(desired, served(rules)); d != "" {
			return nil, fmt.Errorf("rules of %s and EndpointSlices: %s", node.Name(), d)
		}
		out[node.Name()] = rules
	}
	return out, nil
}

// settle waits until all is well and returns the rules of each node.
func (w *world) settle(t *testing.T) map[string][]string {
	t.Helper()
	var rules map[string][]string
	err := install.Until(w.ctx, 2*time.Minute, func(ctx context.Context) error {
		if err := errors.Join(w.running(), w.reported(ctx), w.podsInSlices(ctx)); err != nil {
			return err
		}
		var err error
		rules, err = w.serving(ctx)
		return err
	})
	if err != nil {
		t.Fatalf("before the fault: %v", err)
	}
	return rules
}

// revive starts again what a fault has ended for good, so that the faults after
// it show what they do by themselves.
func (w *world) revive(t *testing.T) {
	for i, controller := range w.controllers {
		if install.Running(controller) == nil {
			continue
		}
		w.controllers = slices.Delete(slices.Clone(w.controllers), i, i+1)
		if err := w.startController(); err != nil {
			t.Error(err)
		}
		break // there are two at most, and one suffices
	}
	for _, node := range w.cluster.Nodes() {
		if install.Running(w.agents[node.Name()]) == nil {
			continue
		}
		if err := w.startAgent(node); err != nil {
			t.Error(err)
		}
	}
}

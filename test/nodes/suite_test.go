package nodes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/programs"
)

// Tests run side by side, as many as -parallel allows: each has a cluster of its
// own, in network namespaces of its own, and waits more than it works. TestTakeover
// measures, and has the machine to itself before they begin.

// limit is how long anything may take to show.
const limit = time.Minute

// built is the directory with the programs, once a test has asked for it.
var built string

// buildOnce builds controller and agent once for all tests.
var buildOnce = sync.OnceValues(func() (string, error) {
	directory, err := os.MkdirTemp("", "nodeproxy-nodes-")
	if err != nil {
		return "", err
	}
	built = directory
	return directory, programs.Into(context.Background(), directory, programs.Controller, programs.Agent)
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// env is a cluster with nodeproxy switched on and the controller running. Tests
// start agents. Most need one node alone, which is node.
type env struct {
	*testing.T
	nodeproxy  *install.Nodeproxy
	controller *cluster.Process
	node       *cluster.Node
}

// start makes a cluster of one node that goes with the test.
func start(t *testing.T) *env { return startNodes(t, 1) }

// startNodes is start with as many nodes, which are in these zones in turn.
func startNodes(t *testing.T, nodes int, zones ...string) *env {
	t.Helper()
	if err := cluster.Check(); err != nil {
		t.Skip(err)
	}
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGINT, syscall.SIGTERM)
	t.Cleanup(stop)
	bin, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	config, err := filepath.Abs("../../config")
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := install.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(ctx, cluster.Options{Nodes: nodes, Zones: zones, Scheme: scheme, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	e := &env{T: t, node: c.Node(0),
		nodeproxy: &install.Nodeproxy{Cluster: c, Bin: bin, Config: config}}
	if err := errors.Join(e.nodeproxy.Prepare(ctx), e.nodeproxy.Enable(ctx)); err != nil {
		t.Fatal(err)
	}
	if e.controller, err = e.nodeproxy.StartController(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the controller, %s", e.controller.Tail())
		}
	})
	return e
}

func (e *env) startAgent(args ...string) *cluster.Process {
	e.Helper()
	agent, err := e.nodeproxy.StartAgent(e.node, args...)
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() {
		if e.Failed() {
			e.Logf("the agent, %s", agent.Tail())
		}
	})
	return agent
}

// until waits until f returns nil.
func (e *env) until(f func(ctx context.Context) error) {
	e.Helper()
	if err := install.Until(e.Context(), limit, f); err != nil {
		objects, listed := e.nodeproxy.Cluster.Kubectl(e.Context(), "get", "pods,endpointslices,nodeproxyrules", "--all-namespaces", "-o", "wide")
		e.Fatal(errors.Join(err, listed), "\n"+objects)
	}
}

// expect waits until a condition of the node has the given status and reason,
// and a message that holds the given text.
func (e *env) expect(condition string, status metav1.ConditionStatus, reason, text string) {
	e.Helper()
	e.until(func(ctx context.Context) error {
		rules := &v1alpha1.NodeProxyRules{}
		if err := e.nodeproxy.Cluster.Client().Get(ctx, client.ObjectKey{Name: e.node.Name()}, rules); err != nil {
			return err
		}
		c := meta.FindStatusCondition(rules.Status.Conditions, condition)
		if c == nil {
			return fmt.Errorf("no condition %s", condition)
		}
		if c.Status != status || c.Reason != reason || !strings.Contains(c.Message, text) {
			return fmt.Errorf("%s is %s, %s: %s; want %s, %s: …%s…", condition, c.Status, c.Reason, c.Message, status, reason, text)
		}
		return nil
	})
}

func (e *env) programmed() {
	e.Helper()
	e.expect(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")
}

// rules are the node's rules with the handles that the kernel gave them: a rule
// that is written again has another one.
func (e *env) rules() []string {
	e.Helper()
	out, err := e.node.Exec(e.Context(), "nft", "-a", "list", "ruleset")
	if err != nil {
		e.Fatal(err)
	}
	var rules []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, "# handle") {
			rules = append(rules, counters(strings.TrimSpace(line)))
		}
	}
	slices.Sort(rules)
	return rules
}

// counters removes the numbers of "counter packets 3 bytes 180".
func counters(rule string) string {
	words := strings.Fields(rule)
	for i := range words {
		if i > 0 && (words[i-1] == "packets" || words[i-1] == "bytes") {
			words[i] = "N"
		}
	}
	return strings.Join(words, " ")
}

// apiServerAnswers connects to the kubernetes Service. It does not wait long: a
// connection that began before there were rules never meets them.
func (e *env) apiServerAnswers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := e.node.Connect(ctx, "tcp", "10.96.0.1:443")
	if err != nil {
		return err
	}
	return conn.Close()
}

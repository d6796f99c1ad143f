package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/kubelets"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

const (
	// pace is how many new connections are begun in a second, and leastShare of
	// them must have been while a row lasted.
	pace       = 150
	leastShare = 0.6
	// system is the namespace of nodeproxy, shop that of the workloads.
	system = "nodeproxy-system"
	shop   = "shop"
)

// world is a cluster on which nodeproxy is tried.
type world struct {
	ctx     context.Context
	root    string // of this repository
	temp    string // directory of this test
	cluster *kubelets.Cluster
	// background is what runs beside rows.
	background sync.WaitGroup
}

// newWorld starts a cluster that goes with the test, and with SIGINT or SIGTERM.
// Nothing of nodeproxy is in it.
func newWorld(t *testing.T, options kubelets.Options) *world {
	t.Helper()
	if err := cluster.Check(); err != nil {
		t.Skip(err)
	}
	inParallel(t)
	if suite.ctx.Err() != nil {
		t.Fatal("interrupted")
	}
	var err error
	if options.Scheme, err = install.Scheme(); err != nil {
		t.Fatal(err)
	}
	options.Progress = os.Stderr
	c, err := kubelets.Start(suite.ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	w := &world{ctx: suite.ctx, root: suite.root, temp: t.TempDir(), cluster: c}
	t.Cleanup(w.background.Wait)
	return w
}

// inParallel runs the rest of a test beside others, because clusters wait more than they work. The first
// tests of the package get the places: which of them go on first is not defined otherwise, and the
// longest must not begin when the others have ended.
func inParallel(t *testing.T) {
	placed := false
	select {
	case suite.places <- struct{}{}:
		placed = true
	default:
	}
	t.Parallel()
	if !placed {
		suite.places <- struct{}{}
	}
	t.Cleanup(func() { <-suite.places })
}

// well returns nil when all is well: nodes and pods are ready, each kernel has the
// desired state, and NodeProxy reports so for its present generation.
func (w *world) well() error {
	np := &v1alpha1.NodeProxy{}
	if err := w.cluster.Client().Get(w.ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, np); err != nil {
		return err
	}
	if np.Status.ObservedGeneration != np.Generation {
		return errors.New("the controller has not seen the NodeProxy yet")
	}
	for _, condition := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionAgentsDeployed} {
		if err := isTrue(np.Status.Conditions, condition); err != nil {
			return fmt.Errorf("NodeProxy: %w", err)
		}
	}
	if err := w.programmed(); err != nil {
		return err
	}
	return w.cluster.PodsReady(w.ctx)
}

// programmed returns nil when each node reports that its kernel has the desired
// state.
func (w *world) programmed() error {
	for _, node := range w.cluster.Nodes() {
		rules := &v1alpha1.NodeProxyRules{}
		if err := w.cluster.Client().Get(w.ctx, client.ObjectKey{Name: node.Name()}, rules); err != nil {
			return err
		}
		if err := isTrue(rules.Status.Conditions, v1alpha1.ConditionProgrammed); err != nil {
			return fmt.Errorf("%s: %w", node.Name(), err)
		}
	}
	return nil
}

func isTrue(conditions []metav1.Condition, name string) error {
	c := meta.FindStatusCondition(conditions, name)
	if c == nil {
		return fmt.Errorf("there is no condition %s", name)
	}
	if c.Status != metav1.ConditionTrue {
		return fmt.Errorf("%s is %s, %s: %s", name, c.Status, c.Reason, c.Message)
	}
	return nil
}

// pods are those of a namespace with a label app.kubernetes.io/name or app, by
// the node on which they are.
func (w *world) pods(namespace, label string) (map[string]corev1.Pod, error) {
	key, value, _ := strings.Cut(label, "=")
	list := &corev1.PodList{}
	if err := w.cluster.Client().List(w.ctx, list, client.InNamespace(namespace), client.MatchingLabels{key: value}); err != nil {
		return nil, err
	}
	byNode := map[string]corev1.Pod{}
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil {
			byNode[pod.Spec.NodeName] = pod
		}
	}
	return byNode, nil
}

// agentPods are the agents' pods by node.
func (r *run) agentPods() map[string]corev1.Pod {
	r.Helper()
	pods, err := r.pods(system, "app.kubernetes.io/name=nodeproxy-agent")
	r.must(err)
	return pods
}

// rules are the rules of the kernel of a node, of both variants of iptables and
// both IP families, without what the kernel counts.
func (r *run) rules(node *kubelets.Node) []string {
	r.Helper()
	return slices.DeleteFunc(r.saved(node), func(line string) bool { return !strings.Contains(line, "-save -A ") })
}

// saved are these rules, and the chains.
func (r *run) saved(node *kubelets.Node) []string {
	r.Helper()
	var saved []string
	for _, save := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		out, err := node.Exec(r.ctx, nil, save)
		r.must(err)
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "-A ") || strings.HasPrefix(line, ":") {
				saved = append(saved, save+" "+strings.TrimSpace(line))
			}
		}
	}
	return saved
}

// allRules are the rules of each node.
func (r *run) allRules() map[string][]string {
	r.Helper()
	all := map[string][]string{}
	for _, node := range r.cluster.Nodes() {
		all[node.Name()] = r.rules(node)
	}
	return all
}

// diagnose prints what helps to find the cause of a failed row.
func (w *world) diagnose(r *run) {
	if w.ctx.Err() != nil {
		return
	}
	for _, args := range [][]string{
		{"get", "nodes,pods", "-A", "-o", "wide"},
		{"get", "nodeproxyrules", "-o", "wide"},
		{"get", "nodeproxies", "-o", `jsonpath={range .items[*].status.conditions[*]}{.type}={.status} {.reason}: {.message}{"\n"}{end}`},
		{"get", "events", "-n", system, "--sort-by", ".lastTimestamp"},
		{"get", "events", "-n", shop, "--sort-by", ".lastTimestamp"},
		{"logs", "-n", system, "-l", "app.kubernetes.io/name=nodeproxy-controller", "--prefix", "--tail", "40"},
		{"logs", "-n", system, "-l", "app.kubernetes.io/name=nodeproxy-agent", "--prefix", "--tail", "40"},
	} {
		out, err := w.cluster.Kubectl(w.ctx, args...)
		if err != nil {
			out += err.Error()
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		r.Logf("kubectl %s:\n%s", strings.Join(args, " "), strings.Join(lines[max(0, len(lines)-80):], "\n"))
	}
	for _, node := range w.cluster.Nodes() {
		if kubelet := node.Kubelet(); kubelet != nil {
			r.Logf("kubelet of %s: %s", node.Name(), kubelet.Tail())
		}
	}
}

package speed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/load"
	"github.com/nodeproxy-io/nodeproxy/test/programs"
)

const (
	services  = 1000
	endpoints = 10 // of each Service
	nodes     = 1000
	// repeats is how often the endpoint change is measured; the median counts.
	repeats = 3
	// pace is between two endpoint changes. It is longer than the agent rests after a
	// write, so that each change is written at once.
	pace = 2 * time.Second
	// factor is how many times the typical value a measurement may be.
	factor = 5
	// patience is how long the test waits for anything. It is above all bounds, so that
	// a measurement beyond its bound is reported with its value.
	patience = 2 * time.Minute
)

// typical is what each measurement takes on two cores with nothing else to do: on the slower one
// of two machines.
func typical() map[string]time.Duration {
	return map[string]time.Duration{
		installation: 4200 * time.Millisecond,
		firstSync:    1700 * time.Millisecond,
		change:       100 * time.Millisecond,
		repair:       1700 * time.Millisecond,
		failover:     1600 * time.Millisecond,
		doctor:       430 * time.Millisecond,
	}
}

// The measurements.
const (
	installation = "installation to Programmed"
	firstSync    = "agent start to Programmed, 1,000 Services"
	change       = "endpoint change to kernel, 1,000 Services"
	repair       = "flush of table nat to all rules, 1,000 Services"
	failover     = "controller stopped to rendered change"
	doctor       = "doctor, 1,000 nodes"
)

// rig is a cluster with nodeproxy and a Service whose only endpoint moves.
type rig struct {
	*testing.T
	nodeproxy *install.Nodeproxy
	node      *cluster.Node // with the agent that is measured
	pods      [2]*cluster.Pod
	address   string // of the Service
	moves     int
	measured  map[string]bool
}

func TestSpeed(t *testing.T) {
	r := newRig(t)
	leader := r.install()
	r.fill()
	r.syncFirst()
	r.changeEndpoints()
	r.flush()
	r.failOver(leader)
	r.runDoctor()
	for name := range typical() {
		if !r.measured[name] {
			t.Errorf("%s: not measured", name)
		}
	}
}

// measurement prints a measurement and fails the test beyond its bound.
func (r *rig) measurement(name string, took ...time.Duration) {
	r.Helper()
	slices.Sort(took)
	value, usual := took[len(took)/2], typical()[name]
	bound := factor * usual
	r.measured[name] = true
	// The | has hack/testreport show the line.
	fmt.Printf("| %-50s %8s, typical %8s, bound %8s\n", name, rounded(value), rounded(usual), rounded(bound))
	if value > bound {
		r.Errorf("%s: %s, which is more than %d times the typical %s", name, rounded(value), factor, rounded(usual))
	}
}

func rounded(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

func newRig(t *testing.T) *rig {
	t.Helper()
	nodeproxy := install.Start(t, 1, programs.Controller, programs.Agent, programs.Plugin)
	return &rig{T: t, nodeproxy: nodeproxy, node: nodeproxy.Cluster.Node(0), measured: map[string]bool{}}
}

// until waits until f returns nil and returns how long that took since begin.
func (r *rig) until(begin time.Time, f func(ctx context.Context) error) time.Duration {
	r.Helper()
	if err := install.Until(r.Context(), patience, f); err != nil {
		r.Fatal(err)
	}
	return time.Since(begin)
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// programmed returns nil once the measured node reports that its kernel has everything.
func (r *rig) programmed(ctx context.Context) error { return r.nodeproxy.ProgrammedOn(ctx, r.node) }

// install measures from the first object to a programmed node, and returns the
// controller. The node leaves the cluster: the next measurements are of another one.
func (r *rig) install() *cluster.Process {
	r.Helper()
	begin := time.Now()
	r.must(r.nodeproxy.Prepare(r.Context()))
	controller, err := r.nodeproxy.StartController()
	r.must(err)
	agent, err := r.nodeproxy.StartAgent(r.node)
	r.must(err)
	r.must(r.nodeproxy.Enable(r.Context()))
	r.measurement(installation, r.until(begin, r.programmed))
	r.must(agent.Stop())
	r.must(r.nodeproxy.Cluster.Client().Delete(r.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.node.Name()}}))
	return controller
}

// fill makes the Services and waits until they are rendered.
func (r *rig) fill() {
	r.Helper()
	c := r.nodeproxy.Cluster
	err := each(services, func(i int) error {
		var addresses []string
		for j := range endpoints {
			addresses = append(addresses, fmt.Sprintf("10.%d.%d.%d", 100+j, i/250, 1+i%250))
		}
		service, slice := cluster.WithoutSelector(metav1.NamespaceDefault, fmt.Sprintf("s%d", i), addresses...)
		return errors.Join(c.Client().Create(r.Context(), service), c.Client().Create(r.Context(), slice))
	})
	r.must(err)
	r.node, err = c.AddNode(r.Context())
	r.must(err)
	for i := range r.pods {
		r.pods[i], err = r.node.RunPod(r.Context(), cluster.PodSpec{Name: fmt.Sprintf("pod-%d", i)})
		r.must(err)
	}
	service, slice := cluster.WithoutSelector(metav1.NamespaceDefault, moving, r.pods[0].IP())
	r.must(errors.Join(c.Client().Create(r.Context(), service), c.Client().Create(r.Context(), slice)))
	r.address = service.Spec.ClusterIP + ":80"
	r.until(time.Now(), func(ctx context.Context) error {
		list := &v1alpha1.ServiceProxyRulesList{}
		if err := c.Client().List(ctx, list); err != nil {
			return err
		}
		const others = 2 // the moving one and that of the API server
		if len(list.Items) != services+others {
			return fmt.Errorf("%d Services are rendered", len(list.Items))
		}
		return c.Client().Get(ctx, client.ObjectKey{Name: r.node.Name()}, &v1alpha1.NodeProxyRules{})
	})
}

// each calls f for the numbers below n, several at a time.
func each(n int, f func(i int) error) error {
	const atOnce = 16
	failed := make([]error, atOnce)
	var group sync.WaitGroup
	for first := range atOnce {
		group.Go(func() {
			for i := first; i < n && failed[first] == nil; i += atOnce {
				failed[first] = f(i)
			}
		})
	}
	group.Wait()
	return errors.Join(failed...)
}

// moving is the Service whose endpoint moves.
const moving = "moving"

// syncFirst measures the first sync of a node.
func (r *rig) syncFirst() {
	r.Helper()
	begin := time.Now()
	_, err := r.nodeproxy.StartAgent(r.node)
	r.must(err)
	r.measurement(firstSync, r.until(begin, r.programmed))
	if got, want := strings.Count(strings.Join(r.nat(r.Context()), "\n"), "--to-destination"), services*endpoints; got < want {
		r.Fatalf("the kernel has %d endpoints of %d", got, want)
	}
}

// nat returns the rules of table nat, without counters.
func (r *rig) nat(ctx context.Context) []string {
	r.Helper()
	out, err := r.node.Exec(ctx, "iptables-save", "-t", "nat")
	r.must(err)
	var rules []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "-A ") {
			rules = append(rules, line)
		}
	}
	slices.Sort(rules)
	return rules
}

// move moves the endpoint of the moving Service to the other pod and returns its name.
func (r *rig) move() (pod string) {
	r.Helper()
	r.moves++
	to := r.pods[r.moves%len(r.pods)]
	_, slice := cluster.WithoutSelector(metav1.NamespaceDefault, moving, to.IP())
	r.must(r.nodeproxy.Cluster.Client().Update(r.Context(), slice))
	return to.Name()
}

// answers returns nil once a new connection to the moving Service reaches a pod.
func (r *rig) answers(pod string) func(context.Context) error {
	target := load.Target{From: r.node.Place, Network: "tcp", Address: r.address, Servers: []string{pod}}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return target.Try(ctx)
	}
}

func (r *rig) changeEndpoints() {
	r.Helper()
	r.until(time.Now(), r.answers(r.pods[0].Name()))
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	var took []time.Duration
	for range repeats {
		<-ticker.C
		begin := time.Now()
		took = append(took, r.until(begin, r.answers(r.move())))
	}
	r.measurement(change, took...)
}

func (r *rig) flush() {
	r.Helper()
	before := r.nat(r.Context())
	begin := time.Now()
	_, err := r.node.Exec(r.Context(), "iptables", "-w", "10", "-t", "nat", "-F")
	r.must(err)
	r.measurement(repair, r.until(begin, func(ctx context.Context) error {
		if now := r.nat(ctx); !slices.Equal(before, now) {
			return fmt.Errorf("%d rules, before the flush %d", len(now), len(before))
		}
		return nil
	}))
}

// failOver stops the leader beside a standby. A leader that is killed, whose lease has
// to expire, is a test of cmd/nodeproxy-controller.
func (r *rig) failOver(leader *cluster.Process) {
	r.Helper()
	standby, err := r.nodeproxy.StartController("--metrics-bind-address=0", "--health-probe-bind-address=0")
	r.must(err)
	r.until(time.Now(), func(context.Context) error {
		text, err := os.ReadFile(standby.Log())
		if err == nil && !strings.Contains(string(text), "Another controller leads") {
			err = errors.New("no warm standby")
		}
		return err
	})
	begin := time.Now()
	r.must(leader.Stop())
	r.measurement(failover, r.until(begin, r.answers(r.move())))
}

// runDoctor gives the cluster many nodes, which have no agents.
func (r *rig) runDoctor() {
	r.Helper()
	c := r.nodeproxy.Cluster
	err := each(nodes, func(i int) error {
		return c.Client().Create(r.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("idle-%d", i), Labels: map[string]string{corev1.LabelOSStable: "linux"}},
			Spec:       corev1.NodeSpec{PodCIDR: fmt.Sprintf("10.%d.%d.0/24", 200+i/250, i%250)},
		})
	})
	r.must(err)
	r.until(time.Now(), func(ctx context.Context) error {
		list := &v1alpha1.NodeProxyRulesList{}
		if err := c.Client().List(ctx, list); err != nil {
			return err
		}
		if len(list.Items) < nodes {
			return fmt.Errorf("%d nodes are rendered", len(list.Items))
		}
		return nil
	})
	var took []time.Duration
	for range 3 { // during the first one the controller may still have work with the nodes
		begin := time.Now()
		out, err := exec.CommandContext(r.Context(), filepath.Join(r.nodeproxy.Bin, "kubectl-nodeproxy"), "doctor", "--kubeconfig", c.Kubeconfig()).CombinedOutput()
		took = append(took, time.Since(begin))
		// Status 1 means findings.
		if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "idle-") {
			r.Fatalf("doctor: %v\n%s", err, out)
		}
	}
	r.measurement(doctor, took...)
}

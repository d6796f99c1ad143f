package ipvs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/ipvskernel"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// limit is how long anything may take to show. It is long because there is one
// processor, which is slow, and because of what is looked at from time to time.
const limit = 3 * time.Minute

// settings are those of all tests, besides which they may patch others in. All nodes get
// what changes at once, also where one of them cannot do it.
const settings = `{"spec":{"rollout":{"maxUnavailable":"100%"},"settings":{"mode":"IPVS","fallback":null,"enforcement":null,"ipvs":null,` +
	`"sync":{"verifyIntervalSeconds":5}}}}`

func TestMain(m *testing.M) { ipvskernel.RunTests(wholeRun{m}) }

// wholeRun is the run of all tests, after which their cluster is removed.
type wholeRun struct{ *testing.M }

func (r wholeRun) Run() int {
	status := r.M.Run()
	if err := started.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "removing the cluster:", err)
		status = max(status, 1)
	}
	return status
}

// world is the cluster of all tests, with nodeproxy switched on.
type world struct {
	ctx        context.Context // of all that outlives a test
	cluster    *cluster.Cluster
	nodeproxy  *install.Nodeproxy
	controller *cluster.Process
	agents     []*cluster.Process // by index of the node

	web      []*cluster.Pod // on the first node and two on the second
	local    *cluster.Pod   // on the second node
	visitors []*cluster.Pod // one a node, without a Service
	sctp     bool           // the kernel has it
	newIPs   int            // cluster IPs that tests have had
}

// started is the world, once a test has asked for it.
var started *world

var startWorld = sync.OnceValues(func() (*world, error) {
	started = &world{ctx: context.Background()}
	return started, started.start()
})

func (w *world) start() error {
	config, err := filepath.Abs("../../config")
	if err != nil {
		return err
	}
	scheme, err := install.Scheme()
	if err != nil {
		return err
	}
	w.cluster, err = cluster.Start(w.ctx, cluster.Options{
		Nodes: 3, Scheme: scheme, Progress: os.Stderr, Programs: ipvskernel.Programs(),
	})
	if err != nil {
		return err
	}
	w.nodeproxy = &install.Nodeproxy{Cluster: w.cluster, Bin: ipvskernel.Programs(), Config: config}
	for _, step := range []func(context.Context) error{
		w.nodeproxy.Prepare, w.nodeproxy.Enable,
		func(ctx context.Context) error { return w.patch(ctx, settings) },
		w.startPods, w.createServices,
	} {
		if err := step(w.ctx); err != nil {
			return err
		}
	}
	if w.controller, err = w.nodeproxy.StartController(); err != nil {
		return err
	}
	for _, node := range w.cluster.Nodes() {
		agent, err := w.nodeproxy.StartAgent(node)
		if err != nil {
			return err
		}
		w.agents = append(w.agents, agent)
	}
	return install.Until(w.ctx, limit, w.complete)
}

// stop removes the cluster, if there is one.
func (w *world) stop() error {
	if w == nil || w.cluster == nil {
		return nil
	}
	return w.cluster.Stop()
}

// complete returns nil once all Services are programmed: a node is Programmed while some are still
// rendered after the start, and its status may count them minutes later.
func (w *world) complete(ctx context.Context) error {
	services, rendered := &corev1.ServiceList{}, &v1alpha1.ServiceProxyRulesList{}
	for _, list := range []client.ObjectList{services, rendered} {
		if err := w.cluster.Client().List(ctx, list); err != nil {
			return err
		}
	}
	for _, node := range w.cluster.Nodes() {
		n, err := total(ctx, node, "nodeproxy_agent_services")
		if err != nil {
			return err
		}
		if n != len(services.Items) || n != len(rendered.Items) {
			return fmt.Errorf("%s has %d of %d Services, of which %d are rendered", node.Name(), n, len(services.Items), len(rendered.Items))
		}
	}
	return w.programmed(ctx)
}

// programmed returns nil once all nodes have the desired state with the expected
// settings.
func (w *world) programmed(ctx context.Context) error {
	if err := install.Running(append(w.agents, w.controller)...); err != nil {
		return err
	}
	for _, node := range w.cluster.Nodes() {
		rules, err := w.rules(ctx, node)
		if err != nil {
			return err
		}
		if rules.Status.SettingsRevision != rules.Spec.SettingsRevision {
			return fmt.Errorf("%s has settings %s instead of %s", node.Name(), rules.Status.SettingsRevision, rules.Spec.SettingsRevision)
		}
	}
	return w.nodeproxy.Programmed(ctx)
}

// test is a test in the world.
type test struct {
	*testing.T
	*world
	pulse *load.Pulse
}

// use returns the world for a test, with all nodes in mode IPVS.
func use(t *testing.T) test {
	t.Helper()
	if err := ipvskernel.Missing(); err != nil {
		t.Skip(err)
	}
	begin, first := time.Now(), started == nil
	w, err := startWorld()
	if first {
		t.Logf("the cluster took %s", time.Since(begin).Round(time.Second))
	}
	if err != nil {
		t.Fatal(errors.Join(err, w.logs()))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.logs())
		}
	})
	pulse := &load.Pulse{}
	go pulse.Run(t.Context())
	return test{t, w, pulse}
}

// logs are the last lines of nodeproxy's processes.
func (w *world) logs() error {
	var errs []error
	for _, process := range append([]*cluster.Process{w.controller}, w.agents...) {
		if process != nil {
			errs = append(errs, errors.New(process.Tail()))
		}
	}
	return errors.Join(errs...)
}

package nodes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// outage is a cluster of two nodes, with an agent on the first, that goes on
// without its API server. The Services near, far and both have pods on the
// first node, on the second, and on both.
type outage struct {
	*env
	addresses map[string]string // by Service
	check     int               // health-check node port of near
	file      string            // of the checkpoint
}

func newOutage(t *testing.T) *outage {
	o := &outage{env: startNodes(t, 2), addresses: map[string]string{}}
	for app, nodes := range map[string][]int{"near": {0}, "far": {1}, "both": {0, 1}} {
		for _, n := range nodes {
			o.runPod(n, app)
		}
		check := o.balanced(app, app)
		if app == "near" {
			o.check = check
		}
		service := &corev1.Service{}
		if err := o.nodeproxy.Cluster.Client().Get(t.Context(), client.ObjectKey{Namespace: "default", Name: app}, service); err != nil {
			t.Fatal(err)
		}
		o.addresses[app] = service.Spec.ClusterIP + ":80"
	}
	o.file = filepath.Join(o.nodeproxy.Cluster.Dir(), "state-"+o.node.Name(), o.node.Name()+".checkpoint")
	return o
}

func (o *outage) runPod(node int, app string) {
	o.Helper()
	n := o.nodeproxy.Cluster.Node(node)
	if _, err := n.RunPod(o.Context(), cluster.PodSpec{Name: fmt.Sprintf("%s-%d", app, node), Labels: map[string]string{"app": app}}); err != nil {
		o.Fatal(err)
	}
}

// reaches waits until the node has rules for the named pods of a Service, and no others, and one of
// them answers; "rejected" is no endpoint. From then on no other may answer, and no connection may fail.
func (o *outage) reaches(app string, want ...string) {
	o.Helper()
	answered := func(ctx context.Context, patience time.Duration) error {
		server := "rejected"
		answer, err := o.dial(ctx, patience, app)
		switch {
		case err == nil:
			server = answer.Server
		case !errors.Is(err, syscall.ECONNREFUSED):
			return err
		}
		if !slices.Contains(want, server) {
			return fmt.Errorf("%s is answered by %q, want %q", app, server, want)
		}
		return nil
	}
	o.until(func(ctx context.Context) error {
		if err := o.leadsTo(app, want); err != nil {
			return err
		}
		return answered(ctx, shortly)
	})
	for range 10 {
		if err := answered(o.Context(), load.Patience); err != nil {
			load.FatalLoss(o, "%s: %v", app, err)
		}
	}
}

// leadsTo returns nil when the rules for a Service lead to the named pods, and to no others.
func (o *outage) leadsTo(app string, names []string) error {
	var want, got []string
	for _, node := range o.nodeproxy.Cluster.Nodes() {
		for _, pod := range node.Pods() {
			if slices.Contains(names, pod.Name()) {
				want = append(want, pod.Address(8080))
			}
		}
	}
	for rule := range strings.Lines(o.exec("iptables-save", "-t", "nat")) {
		if _, to, leads := strings.Cut(rule, "--to-destination "); leads && strings.Contains(rule, "default/"+app+":") {
			got = append(got, strings.Fields(to)[0])
		}
	}
	slices.Sort(want)
	if got = slices.Compact(slices.Sorted(slices.Values(got))); !slices.Equal(got, want) {
		return fmt.Errorf("the rules for %s lead to %q, want %q", app, got, want)
	}
	return nil
}

// shortly is how long a connection is waited for that may have begun before there were rules: it
// never meets them.
const shortly = time.Second

// dial asks a Service.
func (o *outage) dial(ctx context.Context, patience time.Duration, app string) (cluster.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return o.node.Dial(ctx, "tcp", o.addresses[app])
}

// logs waits until the agent's log, which all its runs share, holds a text as
// many times.
func (o *outage) logs(agent *cluster.Process, text string, times int) {
	o.Helper()
	o.until(func(context.Context) error {
		log, err := os.ReadFile(agent.Log())
		if err != nil {
			return err
		}
		if got := strings.Count(string(log), text); got != times {
			return fmt.Errorf("%q is logged %d times, want %d; %s", text, got, times, agent.Tail())
		}
		return nil
	})
}

const (
	firstSet = "The kernel has its first complete set of rules"
	goingBy  = "using the checkpoint until it does"
	answered = "the checkpoint is no longer used"
)

// TestRestartWithoutAPIServer restarts the agent, and then the node, while there
// is no API server.
func TestRestartWithoutAPIServer(t *testing.T) {
	t.Parallel()
	o := newOutage(t)
	agent := o.startAgent()
	o.programmed()
	health := "http://" + o.node.AddressPort(10256) + "/healthz"
	check := "http://" + o.node.AddressPort(o.check) + "/"
	o.until(o.answers(http.MethodGet, health, 200, nil))
	o.until(o.answers(http.MethodGet, check, 200, nil))
	o.until(func(context.Context) error { _, err := os.Stat(o.file); return err })

	// What is programmed after the checkpoint was written is newer than that.
	o.runPod(1, "near")
	o.reaches("near", "near-0", "near-1")
	o.until(func(ctx context.Context) error {
		return o.answersWith(ctx, "near", "near-1")
	})
	if err := o.nodeproxy.Cluster.KillProgram(binaries.APIServer); err != nil {
		t.Fatal(err)
	}
	if err := agent.Kill(); err != nil {
		t.Fatal(err)
	}
	before := o.rules()
	agent = o.startAgent()
	o.logs(agent, goingBy, 1)
	o.logs(agent, firstSet, 2)
	if diff := cmp.Diff(before, o.rules()); diff != "" {
		t.Errorf("rules that may be newer than the checkpoint were changed (-before +after):\n%s", diff)
	}
	o.exec("iptables", "-t", "nat", "-F")
	o.reaches("far", "far-1")
	o.reaches("both", "both-0", "both-1")
	o.reaches("near", "near-0") // as it was when the set was written
	o.until(o.answers(http.MethodGet, health, 200, nil))
	o.until(o.answers(http.MethodGet, check, 200, nil))

	if err := o.node.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-agent.Done()
	agent = o.startAgent()
	o.logs(agent, goingBy, 2)
	o.reaches("far", "far-1")
	o.reaches("both", "both-1")
	o.reaches("near", "rejected")
	o.until(o.answers(http.MethodGet, health, 503, nil))
	o.until(o.answers(http.MethodGet, check, 503, nil))
	o.logs(agent, answered, 0)

	if err := o.nodeproxy.Cluster.StartProgram(t.Context(), binaries.APIServer); err != nil {
		t.Fatal(err)
	}
	// One that has lost its lease may have ended.
	if _, err := o.nodeproxy.StartController("--metrics-bind-address", "0", "--health-probe-bind-address", "0"); err != nil {
		t.Fatal(err)
	}
	for _, pod := range o.node.Pods() {
		if err := pod.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	o.logs(agent, answered, 1)
	o.runPod(0, "near")
	o.runPod(0, "both")
	o.reaches("near", "near-0", "near-1")
	o.reaches("both", "both-0", "both-1")
	o.programmed()
	o.until(o.answers(http.MethodGet, health, 200, nil))
	o.until(o.answers(http.MethodGet, check, 200, nil))
	for app, server := range map[string]string{"near": "near-0", "both": "both-0"} {
		o.until(func(ctx context.Context) error { return o.answersWith(ctx, app, server) })
	}
}

// answersWith reports whether a Service is answered by a pod, now and then by
// others.
func (o *outage) answersWith(ctx context.Context, app, server string) error {
	answer, err := o.dial(ctx, shortly, app)
	if err == nil && answer.Server != server {
		err = fmt.Errorf("%s is answered by %s", app, answer.Server)
	}
	return err
}

// TestStateDirectoryIsFull gives the agent a directory without room: all else goes on,
// the status reports it, and once there is room the set is written.
func TestStateDirectoryIsFull(t *testing.T) {
	t.Parallel()
	e := start(t)
	command, err := e.nodeproxy.AgentCommand(e.node)
	if err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(e.nodeproxy.Cluster.Dir(), "state-"+e.node.Name())
	// A file system of its own that goes with the process: 32 KiB, all of it taken.
	script := `mount -t tmpfs -o size=32k tmpfs "$0" && { dd if=/dev/zero of="$0/filler" bs=4k count=9 2>/dev/null || true; } && exec "$@"`
	command.Args = append([]string{"--mount", "--propagation", "private", "sh", "-c", script, state, command.Path}, command.Args...)
	command.Name, command.Path = "nodeproxy-agent", "/usr/bin/unshare"
	agent, err := e.node.Start(command)
	if err != nil {
		t.Fatal(err)
	}
	e.expect("Programmed", "True", "Programmed", "no space left on device")
	e.until(e.apiServerAnswers)
	inside := filepath.Join("/proc", fmt.Sprint(agent.PID()), "root", state)
	if err := os.Remove(filepath.Join(inside, "filler")); err != nil {
		t.Fatal(err)
	}
	if err := agent.Stop(); err != nil { // writes once more
		t.Fatal(err)
	}
	log, err := os.ReadFile(agent.Log())
	if err != nil || !strings.Contains(string(log), "can be written again") {
		t.Errorf("%v; %s", err, agent.Tail())
	}
}

package tenants

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/load"
	"github.com/nodeproxy-io/nodeproxy/test/programs"
)

const (
	// crowd is how many Nodes there are that no agent serves.
	crowd = 300
	// quietTime, and loopTime, are how long the second tenant is watched without an attack,
	// and with all of them in a loop; onceTime is the least for each attack. It is repeated for
	// onceAgain once it has had its effect, or for TENANTS_LOOP, such as 1m.
	quietTime, onceTime = 15 * time.Second, 5 * time.Second
	onceAgain           = 3 * time.Second
	loopTime            = time.Minute
	// everything is the name of the row of that loop.
	everything = "all of them, again and again"
	// loopPause is between two updates of one attack in a loop. Objects of megabytes keep the
	// API server busy, which has the same processors here: largePause is for those.
	loopPause, largePause = time.Second, 5 * time.Second
	// patience is how long anything may take.
	patience = 2 * time.Minute
)

// rig is a cluster with nodeproxy and two tenants.
type rig struct {
	*testing.T
	cluster    *cluster.Cluster
	nodeproxy  *install.Nodeproxy
	controller *cluster.Process
	agents     []*cluster.Process // by index of the node

	server   *cluster.Pod   // of the second tenant
	thief    *cluster.Pod   // of the attacker
	visitors []*cluster.Pod // one a node
	repeat   time.Duration  // how long each attack is repeated
	created  int            // Services of the second tenant
	tries    sync.WaitGroup // to connect to these
	stolen   atomic.Value   // what another server has answered of one of these
}

func TestTenants(t *testing.T) {
	r := newRig(t)
	rows := table{}
	t.Cleanup(rows.print)

	quiet := r.watch("quiet", "", max(quietTime, r.repeat), nil)
	rows.add(quiet)
	for _, a := range r.attacks() {
		if a.before != nil {
			if err := a.before(t.Context()); err != nil {
				t.Fatalf("%s: %v", a.name, err)
			}
		}
		rows.add(r.watch(a.name, a.limit, max(onceTime, r.repeat), func(ctx context.Context) error { return r.once(ctx, a) }))
		if err := install.Until(t.Context(), patience, r.cleared); err != nil {
			t.Fatalf("%s: the attacker's Services do not go: %v", a.name, err)
		}
	}
	rows.add(r.watch(everything, "", loopTime, r.loop))
	rows.judge(t, quiet)
	r.tries.Wait()
	if stolen := r.stolen.Load(); stolen != nil {
		t.Errorf("a connection of the second tenant was stolen: %s", stolen)
	}
	if err := install.Until(t.Context(), patience, r.programmed); err != nil {
		t.Errorf("at the end: %v", err)
	}
}

// once makes an attack, waits until it has had its effect, and repeats it for a while. Only what an
// attack does besides writing objects ends with the context.
func (r *rig) once(ctx context.Context, a attack) error {
	var group sync.WaitGroup
	if a.during != nil {
		group.Go(func() {
			if err := a.during(ctx); err != nil {
				r.Errorf("%s: %v", a.name, err)
			}
		})
	}
	defer group.Wait()
	if a.objects != nil {
		if err := r.write(r.Context(), a.objects(0)); err != nil {
			return err
		}
	}
	if a.alone != nil {
		if err := a.alone(r.Context()); err != nil {
			return err
		}
	}
	if a.effect != nil {
		if err := install.Until(r.Context(), patience, a.effect); err != nil {
			return err
		}
	}
	if a.objects == nil {
		return nil
	}
	again, cancel := context.WithTimeout(r.Context(), r.repeat)
	defer cancel()
	return r.repeated(again, a)
}

// cleared deletes what the attacker has written and returns nil once no rendered object of it is
// left, so that each row shows one attack.
func (r *rig) cleared(ctx context.Context) error {
	c := r.cluster.Client()
	for _, kind := range []client.Object{&corev1.Service{}, &discoveryv1.EndpointSlice{}} {
		if err := c.DeleteAllOf(ctx, kind, client.InNamespace(attacker)); err != nil {
			return err
		}
	}
	list := &v1alpha1.ServiceProxyRulesList{}
	if err := c.List(ctx, list); err != nil {
		return err
	}
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].Name, attacker+".") {
			return fmt.Errorf("there is still %s", list.Items[i].Name)
		}
	}
	return r.programmed(ctx)
}

// loop makes all attacks until the context ends, and writes the objects of each every loopPause,
// of those over a limit every largePause.
func (r *rig) loop(ctx context.Context) error {
	var group sync.WaitGroup
	list := r.attacks()
	errs := make([]error, 2*len(list))
	for i, a := range list {
		if a.during != nil {
			group.Go(func() { errs[2*i] = a.during(ctx) })
		}
		if a.objects == nil {
			continue
		}
		group.Go(func() { errs[2*i+1] = r.repeated(ctx, a) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// repeated writes the objects of an attack again and again, a little different each time, until the
// context ends. An API server that is too busy for an update harms the attacker alone, but one
// must come through.
func (r *rig) repeated(ctx context.Context, a attack) error {
	pause := loopPause
	if a.large {
		pause = largePause
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	written := false
	var last error
	for round := 1; ctx.Err() == nil; round++ {
		if err := r.write(ctx, a.objects(round)); err == nil {
			written = true
		} else {
			last = err
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	if !written {
		return fmt.Errorf("%s: no update came through: %w", a.name, last)
	}
	return nil
}

func newRig(t *testing.T) *rig {
	t.Helper()
	nodeproxy := install.Start(t, 2, programs.Controller, programs.Agent)
	r := &rig{T: t, cluster: nodeproxy.Cluster, nodeproxy: nodeproxy, repeat: onceAgain}
	if text := os.Getenv("TENANTS_LOOP"); text != "" {
		var err error
		if r.repeat, err = time.ParseDuration(text); err != nil {
			t.Fatalf("TENANTS_LOOP: %v", err)
		}
	}
	for _, step := range []func(context.Context) error{nodeproxy.Prepare, nodeproxy.Enable, r.fill, r.startControl, r.start} {
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := install.Until(t.Context(), patience, r.programmed); err != nil {
		t.Fatal(err)
	}
	return r
}

// fill makes namespaces, pods and Nodes.
func (r *rig) fill(ctx context.Context) error {
	for _, name := range []string{attacker, victim} {
		if err := r.cluster.Client().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
	}
	for i := range crowd {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: crowdName(i), Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
		if err := r.cluster.Client().Create(ctx, node); err != nil {
			return err
		}
	}
	var err error
	if r.server, err = r.cluster.Node(1).RunPod(ctx, cluster.PodSpec{Name: "server"}); err != nil {
		return err
	}
	if r.thief, err = r.cluster.Node(1).RunPod(ctx, cluster.PodSpec{Name: "thief"}); err != nil {
		return err
	}
	for i, node := range r.cluster.Nodes() {
		pod, err := node.RunPod(ctx, cluster.PodSpec{Name: fmt.Sprintf("visitor-%d", i+1)})
		if err != nil {
			return err
		}
		r.visitors = append(r.visitors, pod)
	}
	return nil
}

func crowdName(i int) string { return fmt.Sprintf("crowd-%d", i) }

// start starts the controller and both agents.
func (r *rig) start(context.Context) error {
	var err error
	if r.controller, err = r.nodeproxy.StartController(); err != nil {
		return err
	}
	r.agents = make([]*cluster.Process, len(r.cluster.Nodes()))
	for i := range r.agents {
		if err := r.startAgent(i); err != nil {
			return err
		}
	}
	return nil
}

// startAgent starts the agent of a node, with the iptables-restore of rejecting.
func (r *rig) startAgent(i int) error {
	command, err := r.nodeproxy.AgentCommand(r.cluster.Node(i))
	if err != nil {
		return err
	}
	path, err := r.rejecting()
	if err != nil {
		return err
	}
	command.Env = append(command.Env, path)
	r.agents[i], err = r.cluster.Node(i).Start(command)
	return err
}

func (r *rig) processes() []*cluster.Process {
	return append([]*cluster.Process{r.controller}, r.agents...)
}

// programmed returns nil once both nodes report that their kernels have everything but what is
// rejected of the attacker.
func (r *rig) programmed(ctx context.Context) error {
	if err := install.Running(r.processes()...); err != nil {
		return err
	}
	for _, node := range r.cluster.Nodes() {
		if err := r.nodeproxy.ProgrammedOn(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

// watch has the second tenant create and use Services for at least some time, and until
// something has ended that is done meanwhile, whose context ends after that time. It returns how
// the second tenant fared. All that goes wrong for it fails the test.
func (r *rig) watch(name, limit string, least time.Duration, meanwhile func(context.Context) error) row {
	r.Helper()
	out := row{name: name, limit: limit, memory: map[string]int64{}}
	for _, p := range r.processes() {
		if err := forgetPeak(p.PID()); err != nil {
			r.Fatal(err)
		}
	}
	l, err := load.Start(r.Context(), pace, r.targets())
	if err != nil {
		r.Fatal(err)
	}
	timed, cancel := context.WithTimeout(r.Context(), least)
	defer cancel()
	over, end := context.WithCancel(r.Context())
	defer end()
	go func() {
		defer end()
		if meanwhile != nil {
			if err := meanwhile(timed); err != nil {
				r.Errorf("%s: %v", name, err)
			}
		}
		<-timed.Done()
	}()
	var group sync.WaitGroup
	probes := r.probe(over, &group)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for over.Err() == nil {
		waited, err := r.useNew()
		if err != nil {
			r.Errorf("%s: %v", name, err)
			break
		}
		out.services++
		out.waits = append(out.waits, waited...)
		select {
		case <-over.Done():
		case <-tick.C:
		}
	}
	<-over.Done()
	group.Wait()
	l.End()
	for i, failure := range l.Failures() {
		if i < 10 {
			r.Errorf("%s: %s", name, failure)
		}
	}
	if n := len(l.Failures()); n > 0 {
		load.Lost(r, "%s: %d connections of the second tenant failed", name, n)
	}
	out.probes, out.control = probes()
	for _, p := range r.processes() {
		peak, err := peakOf(p.PID())
		if err != nil {
			r.Fatal(err)
		}
		program := "agent"
		if p == r.controller {
			program = "controller"
		}
		out.memory[program] = max(out.memory[program], peak)
	}
	if err := install.Running(r.processes()...); err != nil {
		r.Fatalf("%s: %v", name, err)
	}
	return out
}

package tenants

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
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
	// onceAgain once it has had its effect, or for heavyAgain if nodes take long for its updates, or
	// for TENANTS_LOOP, such as 1m.
	quietTime, onceTime   = 15 * time.Second, 5 * time.Second
	onceAgain, heavyAgain = 3 * time.Second, 12 * time.Second
	loopTime              = time.Minute
	// quiet is the name of rows without an attack, everything that of the loop.
	quiet      = "quiet"
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
	occupant   *cluster.Process   // of the ports of the first node's agent; nil: none
	pretender  *cluster.Process   // to be a kube-proxy on the first node
	writes     writes

	server   *cluster.Pod    // of the second tenant
	thief    *cluster.Pod    // of the attacker
	visitors []*cluster.Pod  // one a node
	repeat   time.Duration   // how long each attack is repeated; zero: as long as it needs
	created  atomic.Int64    // Services of the second tenant
	tries    sync.WaitGroup  // to connect to these
	stolen   atomic.Bool     // another server has answered one of these
	ctx      context.Context //nolint:containedctx // the test's, which a stolen connection ends
	abort    context.CancelFunc
}

// Context ends with the test, or at once if a connection is stolen.
func (r *rig) Context() context.Context { return r.ctx }

func TestTenants(t *testing.T) {
	chosen := choice(t)
	r := newRig(t, v1alpha1.ModeIPTables)
	rows := newTable(t)
	t.Cleanup(rows.print)
	r.rows(rows, chosen, r.attacks())
	if chosen.MatchString(everything) {
		r.everything(rows)
	}
	r.end(rows)
}

// TestNFTables has nodes in mode NFTables, and the attacks that take them longest.
func TestNFTables(t *testing.T) {
	chosen := choice(t)
	r := newRig(t, v1alpha1.ModeNFTables)
	rows := newTable(t)
	t.Cleanup(rows.print)
	r.rows(rows, chosen, slices.DeleteFunc(r.atLimits(), func(a attack) bool { return !a.heavy }))
	r.end(rows)
}

// choice is the attacks that TENANTS selects.
func choice(t *testing.T) *regexp.Regexp {
	t.Helper()
	chosen, err := regexp.Compile(os.Getenv("TENANTS"))
	if err != nil {
		t.Fatalf("TENANTS: %v", err)
	}
	return chosen
}

// end judges the rows, and that nothing is left of the attacks.
func (r *rig) end(rows *table) {
	r.Helper()
	rows.judge(r.T)
	r.tries.Wait()
	if err := install.Until(r.Context(), patience, r.programmed); err != nil {
		r.Errorf("at the end: %v", err)
	}
}

// rows adds a row without an attack, and one for each that is chosen.
func (r *rig) rows(to *table, chosen *regexp.Regexp, attacks []attack) {
	r.Helper()
	to.add(r.watch(quiet, "", max(quietTime, r.repeat), nil))
	for _, a := range attacks {
		if !chosen.MatchString(a.name) {
			continue
		}
		if a.before != nil {
			if err := a.before(r.Context()); err != nil {
				r.Fatalf("%s: %v", a.name, err)
			}
		}
		watch := func() row {
			out := r.watch(a.name, a.limit, max(onceTime, r.repeat), func(ctx context.Context) error { return r.once(ctx, a) })
			out.usual = a.services
			return out
		}
		out := watch()
		if p99, most := percentile(out.waits, 99), to.longest(a.name); p99 > most && os.Getenv("RETRY") != "0" {
			// A defect shows again; that the machine is slow for a while shows without an attack, too.
			r.Logf("%s%s: the second tenant waited %s for a Service, more than %s", load.PartRepeated, a.name, p99, most)
			out.repeated = true
			to.add(out)
			r.clear(a.name)
			if err := install.Until(r.Context(), patience, r.removed); err != nil {
				r.Fatalf("%s: %v", a.name, err)
			}
			to.add(r.watch(quiet, "", quietTime, nil))
			out = watch()
		}
		to.add(out)
		if a.after != nil {
			if err := a.after(r.Context()); err != nil {
				r.Fatalf("%s: %v", a.name, err)
			}
		}
		r.clear(a.name)
	}
}

// clear waits until nothing is left of an attack.
func (r *rig) clear(attack string) {
	r.Helper()
	if err := install.Until(r.Context(), patience, r.cleared); err != nil {
		r.Fatalf("%s: the attacker's Services do not go: %v", attack, err)
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
	least := onceAgain
	switch {
	case r.repeat > 0:
		least = r.repeat
	case a.heavy:
		least = heavyAgain
	}
	again, cancel := context.WithTimeout(r.Context(), least)
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

// removed returns nil once no node has rules of the attacker. Nodes report Programmed before: what is large waits
// for its turn.
func (r *rig) removed(ctx context.Context) error {
	for _, node := range r.cluster.Nodes() {
		rules, err := node.Exec(ctx, "iptables-save", "-t", "nat")
		if err != nil {
			return err
		}
		if strings.Contains(rules, attacker+"/") {
			return fmt.Errorf("%s still has rules of the attacker", node.Name())
		}
	}
	return nil
}

// everything adds the row of all attacks at once but the heavy ones, each of which takes the controller or a
// node long by itself.
func (r *rig) everything(to *table) {
	r.Helper()
	list := slices.DeleteFunc(r.attacks(), func(a attack) bool { return a.heavy })
	for _, a := range list {
		if a.before != nil {
			if err := a.before(r.Context()); err != nil {
				r.Fatalf("%s: %s: %v", everything, a.name, err)
			}
		}
	}
	all := r.watch(everything, "", loopTime, func(ctx context.Context) error { return r.loop(ctx, list) })
	for _, a := range list {
		all.usual += a.services + mostLines
	}
	to.add(all)
	for _, a := range list {
		if a.after != nil {
			if err := a.after(r.Context()); err != nil {
				r.Errorf("%s: %s: %v", everything, a.name, err)
			}
		}
	}
}

// loop makes attacks until the context ends, and writes the objects of each every loopPause, of those
// over a limit every largePause. Then it waits until each has had its effect.
func (r *rig) loop(ctx context.Context, attacks []attack) error {
	var group sync.WaitGroup
	errs := make([]error, 3*len(attacks))
	for i, a := range attacks {
		if a.during != nil {
			group.Go(func() { errs[3*i] = a.during(ctx) })
		}
		group.Go(func() { errs[3*i+1] = r.repeated(ctx, a) })
	}
	group.Wait()
	for i, a := range attacks {
		if a.effect != nil {
			if err := install.Until(r.Context(), patience, a.effect); err != nil {
				errs[3*i+2] = fmt.Errorf("%s: %w", a.name, err)
			}
		}
	}
	return errors.Join(errs...)
}

// repeated writes the objects of an attack again and again, a little different each time, or does what
// is done alone, until the context ends. An API server that is too busy for an update harms the attacker alone, but one
// must come through, which may take longer.
func (r *rig) repeated(ctx context.Context, a attack) error {
	pause := loopPause
	if a.large {
		pause = largePause
	}
	if a.objects == nil && a.alone == nil {
		return nil
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	written := false
	var last error
	for round := 1; ctx.Err() == nil; round++ {
		if a.alone != nil {
			if err := a.alone(r.Context()); err != nil {
				return err
			}
			written = true
		} else if err := r.write(ctx, a.objects(round)); err == nil {
			written = true
		} else {
			last = err
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	if written {
		return nil
	}
	patient, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	if err := r.write(patient, a.objects(1)); err != nil {
		return fmt.Errorf("%s: no update came through: %w, then %w", a.name, last, err)
	}
	return nil
}

func newRig(t *testing.T, mode v1alpha1.ProxyMode) *rig {
	t.Helper()
	nodeproxy := install.Start(t, 2, programs.Controller, programs.Agent)
	r := &rig{T: t, cluster: nodeproxy.Cluster, nodeproxy: nodeproxy}
	r.ctx, r.abort = context.WithCancel(t.Context())
	t.Cleanup(r.abort)
	if text := os.Getenv("TENANTS_LOOP"); text != "" {
		var err error
		if r.repeat, err = time.ParseDuration(text); err != nil {
			t.Fatalf("TENANTS_LOOP: %v", err)
		}
	}
	inMode := func(ctx context.Context) error {
		proxy := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
		before := client.MergeFrom(proxy.DeepCopy())
		proxy.Spec.Settings = &v1alpha1.WrittenSettings{Mode: &mode}
		return r.cluster.Client().Patch(ctx, proxy, before)
	}
	for _, step := range []func(context.Context) error{nodeproxy.Prepare, nodeproxy.Enable, inMode, r.fill, r.startControl, r.start} {
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, holds := range []func(context.Context) error{r.programmed, r.balanced} {
		if err := install.Until(t.Context(), patience, holds); err != nil {
			t.Fatal(err)
		}
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
	return r.balance(ctx)
}

// crowdPrefix is what names of the crowd's Nodes begin with.
const crowdPrefix = "crowd-"

func crowdName(i int) string { return fmt.Sprintf("%s%d", crowdPrefix, i) }

// start starts the controller and both agents.
func (r *rig) start(context.Context) error {
	var err error
	if r.controller, err = r.nodeproxy.StartController("--health-probe-bind-address", controllerHealth); err != nil {
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

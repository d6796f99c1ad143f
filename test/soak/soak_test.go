package soak

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/load"
	"github.com/nodeproxy-io/nodeproxy/test/programs"
)

const (
	// durationVariable states how long TestSoak takes, as in SOAK=12h.
	durationVariable = "SOAK"
	defaultDuration  = 10 * time.Minute

	services   = 50 // that stay, and whose endpoints change
	podsOnNode = 3
	pace       = 50 // new connections a second
	changePace = 5  // of endpoints, a second
	// Every so many changes a Service is created or deleted.
	changesPerService = 10
	limit             = time.Minute
	// growth is how much more memory a process may use at the end than after the first
	// half, besides slack for the garbage collector.
	growth      = 1.15
	memorySlack = 16 << 20 // bytes
	fileSlack   = 8
)

// world is a cluster whose Services change.
type world struct {
	*testing.T
	nodeproxy *install.Nodeproxy
	cluster   *cluster.Cluster
	processes map[string]*cluster.Process
	pods      []*cluster.Pod
	slices    []*discoveryv1.EndpointSlice
}

func TestSoak(t *testing.T) {
	lasts := defaultDuration
	if text := os.Getenv(durationVariable); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", durationVariable, err)
		}
	}
	if err := cluster.Check(); err != nil {
		t.Skip(err)
	}
	w := newWorld(t)
	targets := w.targets()
	for _, target := range targets {
		w.until(target.Try)
	}
	connections, err := load.Start(t.Context(), pace, targets)
	if err != nil {
		t.Fatal(err)
	}
	defer connections.End()

	begun := time.Now()
	changes := w.change(0, begun.Add(lasts/2))
	half := w.usage()
	changes = w.change(changes, begun.Add(lasts))
	end := w.usage()

	w.until(w.nodeproxy.Programmed)
	w.until(w.rendered)
	connections.End()
	if failures := connections.Failures(); len(failures) > 0 {
		load.Lost(t, "%d of %d connections failed, the first: %s", len(failures), connections.Total(), failures[0])
	}
	if least := int(lasts.Seconds()) * pace * 9 / 10; connections.Total() < least {
		t.Errorf("only %d connections in %s, want at least %d", connections.Total(), lasts, least)
	}
	if least := int(lasts.Seconds()) * changePace * 3 / 4; changes < least {
		t.Errorf("only %d changes in %s, want at least %d: this proves too little", changes, lasts, least)
	}
	for name, h := range half {
		e := end[name]
		t.Logf("%s: memory %d KiB after half of the time, %d KiB at the end; open files %d, %d", name, h.memory>>10, e.memory>>10, h.files, e.files)
		if float64(e.memory) > float64(h.memory)*growth+memorySlack {
			t.Errorf("%s: memory grew from %d to %d KiB", name, h.memory>>10, e.memory>>10)
		}
		if e.files > h.files+fileSlack {
			t.Errorf("%s: open files grew from %d to %d", name, h.files, e.files)
		}
	}
	t.Logf("%d changes, %d connections in %s", changes, connections.Total(), lasts)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	bin := t.TempDir()
	if err := programs.Into(t.Context(), bin, programs.Controller, programs.Agent); err != nil {
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
	c, err := cluster.Start(t.Context(), cluster.Options{Nodes: 2, Scheme: scheme, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	w := &world{T: t, cluster: c, processes: map[string]*cluster.Process{},
		nodeproxy: &install.Nodeproxy{Cluster: c, Bin: bin, Config: config}}
	w.must(w.nodeproxy.Prepare(t.Context()))
	w.must(w.nodeproxy.Enable(t.Context()))
	controller, err := w.nodeproxy.StartController()
	w.must(err)
	w.processes["controller"] = controller
	for _, node := range c.Nodes() {
		agent, err := w.nodeproxy.StartAgent(node)
		w.must(err)
		w.processes["agent of "+node.Name()] = agent
		for i := range podsOnNode {
			pod, err := node.RunPod(t.Context(), cluster.PodSpec{Name: fmt.Sprintf("%s-%d", node.Name(), i)})
			w.must(err)
			w.pods = append(w.pods, pod)
		}
	}
	for i := range services {
		w.create(fmt.Sprintf("stays-%d", i), i)
	}
	w.until(w.rendered)
	w.until(w.nodeproxy.Programmed)
	return w
}

// create makes a Service without a selector whose endpoints are half of the pods.
func (w *world) create(name string, first int) {
	w.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	}
	w.must(w.cluster.Client().Create(w.Context(), service))
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{
			discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "test",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
	}
	for i := range len(w.pods) / 2 {
		slice.Endpoints = append(slice.Endpoints, endpoint(w.pods[(first+i)%len(w.pods)]))
	}
	w.must(w.cluster.Client().Create(w.Context(), slice))
	if len(w.slices) < services {
		w.slices = append(w.slices, slice)
	}
}

func endpoint(pod *cluster.Pod) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{pod.IP()}, NodeName: new(pod.Node().Name())}
}

// change replaces one endpoint of a Service after another until a time, at changePace, and
// now and then creates or deletes a Service. The pods all answer, so no connection depends on
// how fast a change arrives. It returns how many changes there were, counted from before.
func (w *world) change(before int, until time.Time) int {
	w.Helper()
	tick := time.NewTicker(time.Second / changePace)
	defer tick.Stop()
	for n := before; ; n++ {
		select {
		case <-w.Context().Done():
			w.Fatal(w.Context().Err())
		case now := <-tick.C:
			if now.After(until) {
				return n
			}
		}
		for name, p := range w.processes {
			if err := install.Running(p); err != nil {
				w.Fatalf("%s: %v", name, err)
			}
		}
		slice := w.slices[n%services]
		slice.Endpoints = append(slice.Endpoints[1:], endpoint(w.pods[(n/services+n)%len(w.pods)]))
		w.must(w.cluster.Client().Update(w.Context(), slice))
		switch phase := n % (2 * changesPerService); phase {
		case 0:
			w.create("comes", n)
		case changesPerService:
			for _, object := range []client.Object{&corev1.Service{}, &discoveryv1.EndpointSlice{}} {
				object.SetNamespace(metav1.NamespaceDefault)
				object.SetName("comes")
				w.must(w.cluster.Client().Delete(w.Context(), object))
			}
		}
	}
}

func (w *world) targets() []load.Target {
	var out []load.Target
	for i := range services {
		service := &corev1.Service{}
		w.must(w.cluster.Client().Get(w.Context(), client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("stays-%d", i)}, service))
		from := w.cluster.Node(i % 2)
		out = append(out, load.Target{Name: service.Name, From: from.Place, Via: from.Name(), Network: "tcp",
			Address: net.JoinHostPort(service.Spec.ClusterIP, "80")})
	}
	return out
}

// rendered returns nil when each Service, and nothing else, has its ServiceProxyRules, and those whose
// endpoints change have the last ones.
func (w *world) rendered(ctx context.Context) error {
	all, rules := &corev1.ServiceList{}, &v1alpha1.ServiceProxyRulesList{}
	if err := w.cluster.Client().List(ctx, all); err != nil {
		return err
	}
	if err := w.cluster.Client().List(ctx, rules); err != nil {
		return err
	}
	endpoints := map[string][]string{}
	for i := range rules.Items {
		name := rules.Items[i].Name
		endpoints[name] = nil
		for _, port := range rules.Items[i].Spec.EndpointsByPort() {
			for _, group := range port {
				endpoints[name] = append(endpoints[name], slices.Collect(group.All())...)
			}
		}
		slices.Sort(endpoints[name])
	}
	var names []string
	for i := range all.Items {
		names = append(names, all.Items[i].Namespace+"."+all.Items[i].Name)
	}
	slices.Sort(names)
	if got := slices.Sorted(maps.Keys(endpoints)); !slices.Equal(got, names) {
		return fmt.Errorf("there are ServiceProxyRules %q, want %q", got, names)
	}
	for _, slice := range w.slices {
		var want []string
		for _, e := range slice.Endpoints {
			want = append(want, net.JoinHostPort(e.Addresses[0], "8080"))
		}
		slices.Sort(want)
		if got := endpoints[metav1.NamespaceDefault+"."+slice.Name]; !slices.Equal(got, slices.Compact(want)) {
			return fmt.Errorf("%s is rendered with endpoints %q, want %q", slice.Name, got, want)
		}
	}
	return nil
}

// usage is what a process uses.
type usage struct {
	memory int // resident, in bytes
	files  int // open
}

func (w *world) usage() map[string]usage {
	w.Helper()
	out := map[string]usage{}
	for name, p := range w.processes {
		used, err := p.Usage()
		w.must(err)
		files, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(p.PID()), "fd"))
		w.must(err)
		out[name] = usage{memory: int(used.Resident), files: len(files)}
	}
	return out
}

func (w *world) until(f func(context.Context) error) {
	w.Helper()
	w.must(install.Until(w.Context(), limit, f))
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

package simulated

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
)

const (
	// quickly is how slow an agent is that is slow.
	quickly = 400 * time.Millisecond
	// lateness is how late a watch is that is late: passes of the reconciler come and go
	// meanwhile.
	lateness = 1500 * time.Millisecond
	// size is how many nodes there are: the first edge of them are of pool edge, the
	// rest of pool core. Those of edge are ten each in the zones a, b and c.
	size, edge = 50, 30
	// patience is how long a test waits for what happens at once on an idle machine.
	patience = 40 * time.Second
)

// world is a cluster with nodes that do nothing but report.
type world struct {
	t          *testing.T
	plane      *plane
	api        client.WithWatch // as people
	history    *history
	fleet      *fleet
	controller *running
	lag        time.Duration // of the controller's watch over rules
}

func nodeName(i int) string { return fmt.Sprintf("node-%02d", i) }

// nodeNames are those of the nodes from one to another, the last not included.
func nodeNames(from, to int) (names []string) {
	for i := from; i < to; i++ {
		names = append(names, nodeName(i))
	}
	return names
}

// newWorld makes a cluster in which all is well, with a NodeProxy. At the end of the
// test its history is checked.
func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOf(t, size)
}

// newWorldOf is newWorld with so many nodes.
func newWorldOf(t *testing.T, size int) *world {
	t.Helper()
	w := emptyWorld(t)
	t.Cleanup(w.verify)
	workqueue.ParallelizeUntil(t.Context(), 8, size, func(i int) { w.addNode(nodeName(i), poolOf(i), zoneOf(i)) })
	w.startController()
	w.create(&v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}})
	w.await("the controller knows that all nodes are programmed", func() bool { // else those come first that it does not know of
		np := find[*v1alpha1.NodeProxy](w.history, v1alpha1.NodeProxyName)
		return np != nil && int(np.Status.Nodes.Programmed) == size
	})
	return w
}

func zoneOf(i int) int {
	if i < edge {
		return i / 10
	}
	return i % 3
}

// inTurn are the nodes of pool edge in the order in which a change reaches them: zones
// in turn, and in each the lower name.
func inTurn() (names []string) {
	for i := range edge {
		names = append(names, nodeName(i%3*10+i/3))
	}
	return names
}

// emptyWorld makes a cluster without nodes or a controller, which is left empty.
func emptyWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, plane: planes.borrow(t), history: newHistory()}
	who := rest.CopyConfig(w.plane.admin)
	who.UserAgent = people
	scheme, err := objects.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	if w.api, err = client.NewWithWatch(who, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.empty)
	w.watch()
	return w
}

func poolOf(i int) string {
	if i < edge {
		return "edge"
	}
	return "core"
}

// watch starts to record what is written, and to pass it to the agents.
func (w *world) watch() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := &sync.WaitGroup{}
	w.t.Cleanup(func() {
		cancel()
		done.Wait()
	})
	w.fleet = &fleet{t: w.t, ctx: ctx, api: w.api, done: done, agents: map[string]*agent{}}
	for _, kind := range []client.ObjectList{
		&v1alpha1.NodeProxyRulesList{}, &v1alpha1.NodeProxyPolicyList{}, &v1alpha1.NodeProxyList{}, &corev1.NodeList{},
		&v1alpha1.ServiceProxyRulesList{}, &v1alpha1.ServiceProxyPolicyList{}, &eventsv1.EventList{},
	} {
		w.history.record(ctx, w.t, w.api, kind, done)
	}
	// The agents have a watch of their own, so that what they see has nothing to do
	// with what is recorded.
	rules, err := w.api.Watch(ctx, &v1alpha1.NodeProxyRulesList{})
	if err != nil {
		w.t.Fatal(err)
	}
	done.Go(func() {
		defer rules.Stop()
		for event := range rules.ResultChan() {
			if r, ok := event.Object.(*v1alpha1.NodeProxyRules); ok {
				w.fleet.see(r)
			}
		}
	})
}

// startController starts a controller in the place of one that has ended.
func (w *world) startController() {
	w.t.Helper()
	w.controller = startController(w.t, w.plane, w.lag)
}

// addNode adds a Node in a zone, and starts its agent.
func (w *world) addNode(name, pool string, zone int) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelOSStable: "linux", corev1.LabelTopologyZone: string(rune('a' + zone)), "pool": pool,
	}}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	if err := w.api.Create(w.t.Context(), node); err != nil {
		w.t.Errorf("creating the Node %s: %v", name, err)
	}
	w.fleet.start(name, always(works))
}

func (w *world) create(object client.Object) {
	w.t.Helper()
	if err := w.api.Create(w.t.Context(), object); err != nil {
		w.t.Fatalf("creating %T %s: %v", object, object.GetName(), err)
	}
}

func (w *world) delete(object client.Object) {
	w.t.Helper()
	if err := w.api.Delete(w.t.Context(), object); err != nil {
		w.t.Fatalf("deleting %T %s: %v", object, object.GetName(), err)
	}
}

// edit changes an object of people's, as they do with kubectl edit.
func edit[T client.Object](w *world, object T, change func(T)) {
	w.t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		change(object)
		return w.api.Update(w.t.Context(), object)
	})
	if err != nil {
		w.t.Fatalf("editing %T %s: %v", object, object.GetName(), err)
	}
}

func (w *world) await(what string, holds func() bool) {
	w.t.Helper()
	w.history.await(w.t, "not so: "+what, patience, holds)
}

// policy is that of a name, as it is now.
func (w *world) policy(name string) *v1alpha1.NodeProxyPolicy {
	if p := find[*v1alpha1.NodeProxyPolicy](w.history, name); p != nil {
		return p
	}
	return &v1alpha1.NodeProxyPolicy{}
}

// ready is the reason of Ready of a policy, once its status is about its newest
// generation.
func (w *world) ready(name string) string {
	p := w.policy(name)
	c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
	if c == nil || c.ObservedGeneration != p.Generation {
		return ""
	}
	return c.Reason
}

// awaitReady waits until Ready of a policy has a reason, for its newest generation.
func (w *world) awaitReady(name, reason string) {
	w.t.Helper()
	stored := &v1alpha1.NodeProxyPolicy{}
	if err := w.api.Get(w.t.Context(), client.ObjectKey{Name: name}, stored); err != nil {
		w.t.Fatal(err)
	}
	w.await(fmt.Sprintf("Ready of policy %s has reason %s for generation %d", name, reason, stored.Generation), func() bool {
		return w.policy(name).Generation >= stored.Generation && w.ready(name) == reason
	})
}

// carrying counts the nodes that carry settings with a property.
func (w *world) carrying(has func(*v1alpha1.ProxySettings) bool) (names []string) {
	for _, rules := range current[*v1alpha1.NodeProxyRules](w.history) {
		if has(&rules.Spec.Settings) {
			names = append(names, rules.Name)
		}
	}
	return names
}

// settled checks that each node carries what the policies and the NodeProxy that there
// are now make of its settings: each field of the strongest policy that sets it.
func (w *world) settled() {
	w.t.Helper()
	base := find[*v1alpha1.NodeProxy](w.history, v1alpha1.NodeProxyName)
	strongest := slices.SortedFunc(slices.Values(current[*v1alpha1.NodeProxyPolicy](w.history)), func(a, b *v1alpha1.NodeProxyPolicy) int {
		return cmp.Or(cmp.Compare(ptr.Deref(b.Spec.Priority, 0), ptr.Deref(a.Spec.Priority, 0)), cmp.Compare(a.Name, b.Name))
	})
	for _, node := range current[*corev1.Node](w.history) {
		want, names := map[string]string{}, []string(nil)
		add := func(settings any) (added bool) {
			for path, value := range w.fields(settings) {
				if _, found := want[path]; !found {
					want[path], added = value, true
				}
			}
			return added
		}
		for _, p := range strongest {
			if labels.SelectorFromSet(p.Spec.NodeSelector.MatchLabels).Matches(labels.Set(node.Labels)) && add(p.Spec.Settings) {
				names = append(names, p.Name)
			}
		}
		if base.Spec.Settings != nil {
			add(base.Spec.Settings)
		}
		add(v1alpha1.CompleteSettings(nil))
		rules := find[*v1alpha1.NodeProxyRules](w.history, node.Name)
		switch {
		case rules == nil:
			w.t.Errorf("%s has no rules", node.Name)
		case !maps.Equal(w.fields(rules.Spec.Settings), want):
			w.t.Errorf("%s carries %v by %q, and is to have %v by %q", node.Name, w.fields(rules.Spec.Settings), rules.Spec.Policies, want, names)
		case !slices.Equal(rules.Spec.Policies, names):
			w.t.Errorf("%s names the policies %q, and is to name %q", node.Name, rules.Spec.Policies, names)
		}
	}
}

// fields are the values of settings by their paths in JSON.
func (w *world) fields(settings any) map[string]string {
	w.t.Helper()
	text, err := json.Marshal(settings)
	if err != nil {
		w.t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		w.t.Fatal(err)
	}
	out := map[string]string{}
	var walk func(parent string, tree map[string]any)
	walk = func(parent string, tree map[string]any) {
		for name, value := range tree {
			if inner, is := value.(map[string]any); is {
				walk(parent+name+".", inner)
			} else {
				out[parent+name] = fmt.Sprint(value)
			}
		}
	}
	walk("", tree)
	return out
}

// grants are the nodes that were given a change since a version, in order; those where
// nothing was at risk are left out.
func (w *world) grants(since uint64) (names []string) {
	moments, byHand := w.history.all()
	until := check(slices.DeleteFunc(slices.Clone(moments), func(m moment) bool { return m.version > since }), byHand)
	for _, g := range check(moments, byHand).grants[len(until.grants):] {
		if !g.free {
			names = append(names, g.node)
		}
	}
	return names
}

// eventsOf returns the events about an object, oldest first, as type and reason.
func (w *world) eventsOf(name string) (out []string) {
	events := current[*eventsv1.Event](w.history)
	slices.SortStableFunc(events, func(a, b *eventsv1.Event) int { return a.EventTime.Compare(b.EventTime.Time) })
	for _, e := range events {
		if e.Regarding.Name == name {
			out = append(out, e.Type+" "+e.Reason)
		}
	}
	return out
}

// awaitEvents waits until these are the events about an object: they come after the status.
func (w *world) awaitEvents(name string, want ...string) {
	w.t.Helper()
	w.await(fmt.Sprintf("the events about %s are %q", name, want), func() bool { return slices.Equal(w.eventsOf(name), want) })
}

// verify checks all that has happened.
func (w *world) verify() {
	w.t.Helper()
	if w.controller != nil {
		w.controller.stop()
	}
	c := check(w.history.all())
	for i, what := range c.broken {
		if i == 20 {
			w.t.Errorf("and %d more", len(c.broken)-i)
			break
		}
		w.t.Error(what)
	}
	if w.t.Failed() {
		w.t.Log(w.history.summary())
		var lines []string
		for _, g := range c.grants {
			lines = append(lines, fmt.Sprintf("%s %s %s by %v", g.Time.Format(time.TimeOnly), g.node, g.Revision, g.By))
		}
		w.t.Log("granted:\n" + strings.Join(lines, "\n"))
	}
}

// empty leaves the control plane as it was.
func (w *world) empty() {
	ctx := context.Background()
	for _, kind := range []client.Object{
		&v1alpha1.NodeProxyPolicy{}, &v1alpha1.ServiceProxyPolicy{}, &v1alpha1.NodeProxy{}, &v1alpha1.NodeProxyRules{},
		&v1alpha1.ServiceProxyRules{}, &corev1.Node{},
	} {
		if err := w.api.DeleteAllOf(ctx, kind); err != nil {
			w.t.Errorf("deleting every %T: %v", kind, err)
		}
	}
	for kind, in := range map[client.Object]string{&coordinationv1.Lease{}: namespace, &eventsv1.Event{}: metav1.NamespaceDefault} {
		if err := w.api.DeleteAllOf(ctx, kind, client.InNamespace(in)); err != nil {
			w.t.Errorf("deleting every %T: %v", kind, err)
		}
	}
}

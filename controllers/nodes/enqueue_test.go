package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/pacing"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// newEnqueueRig returns a pace for so many Nodes, node-0 and so on, and what makes others.
func newEnqueueRig(t *testing.T, nodes int) (*enqueuePace, *clocktesting.FakePassiveClock, client.WithWatch) {
	t.Helper()
	scheme, err := objects.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme)
	for _, name := range nodeNames(nodes) {
		builder.WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	if err := objects.AddIndexes(t.Context(), controllertest.Indexing{ClientBuilder: builder}); err != nil {
		t.Fatal(err)
	}
	clk, c := clocktesting.NewFakePassiveClock(controllertest.Noon), builder.Build()
	return newEnqueuePace(c, clk), clk, c
}

func nodeNames(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("node-%d", i)
	}
	return out
}

// TestNamespaceThatNamesAllNodes again and again has few of them in the queue at a time, in front of
// those of others, and all rendered one after the other as long as it has something left, later
// more slowly.
func TestNamespaceThatNamesAllNodes(t *testing.T) {
	for nodes, want := range map[int][]int{ // rendered in each second
		200:  {200, 200, 141, 20, 20}, // 500, 20 for each second, and one
		800:  {800, 800, 81, 40},      // 1,600, 40 for each second, and one
		3000: {3000, 3000, 301, 150},
	} {
		p, clk, _ := newEnqueueRig(t, nodes)
		q := &controllertest.RecordingQueue{}
		for second, want := range want {
			q.Added = map[string][]time.Duration{}
			p.enqueue(t.Context(), q, "attacker", nodeNames(nodes))
			got, e := 0, p.namespaces["attacker"]
			for due := true; due; {
				due = false
				if len(e.queued) > enqueueAtOnce {
					t.Fatalf("%d nodes: %d are in the queue", nodes, len(e.queued))
				}
				for node, at := range e.queued {
					if !at.After(clk.Now()) {
						p.began(node)
						got, due = got+1, true
						break
					}
				}
			}
			if got != want {
				t.Errorf("%d nodes, second %d: %d rendered, want %d", nodes, second, got, want)
			}
			clk.SetTime(controllertest.Noon.Add(time.Duration(second+1) * time.Second))
		}
		q.Added = map[string][]time.Duration{}
		if p.enqueue(t.Context(), q, "victim", []string{"node-7"}); !slices.Equal(q.Added["node-7"], []time.Duration{0}) {
			t.Errorf("another namespace waits: %v", q.Added)
		}
	}
}

// TestNodeThatWasAskedForSooner is rendered again for a change that comes between that and its own time:
// the queue has one time for each node.
func TestNodeThatWasAskedForSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, _ := newEnqueueRig(t, 200)
		p.clock = clock.RealClock{} // that of the bubble
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer q.ShutDown()
		var rendered []time.Duration
		begin := time.Now()
		last := nodeRequest("node-199")
		go func() {
			for {
				r, ended := q.Get()
				if ended {
					return
				}
				p.began(r.Name)
				if r == last {
					rendered = append(rendered, time.Since(begin))
				}
				q.Done(r)
			}
		}()
		for range 3 { // the burst is used up: 100 nodes wait
			p.enqueue(t.Context(), q, "shop", nodeNames(200))
			synctest.Wait()
		}
		q.AddAfter(last, 100*time.Millisecond)
		time.Sleep(300 * time.Millisecond)
		p.enqueue(t.Context(), q, "shop", []string{"node-199"})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if want := []time.Duration{0, 0, 100 * time.Millisecond, 4950 * time.Millisecond}; !slices.Equal(rendered, want) {
			t.Errorf("rendered after %v, want %v", rendered, want)
		}
	})
}

// A namespace that has used up what it had gets more once there are more Nodes.
func TestEnqueuePaceFollowsTheNumberOfNodes(t *testing.T) {
	p, clk, c := newEnqueueRig(t, 0)
	q := &controllertest.RecordingQueue{Added: map[string][]time.Duration{}}
	p.enqueue(t.Context(), q, "shop", nil)
	if rate, burst := p.fresh.Rate, p.fresh.Burst; rate != 20 || burst != 25*time.Second {
		t.Errorf("without Nodes %d a second, for %s", rate, burst)
	}
	for _, name := range nodeNames(1000) {
		if err := c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		after time.Duration
		rate  int
		burst time.Duration
	}{{enqueueSweep - 1, 20, 25 * time.Second}, {enqueueSweep, 50, 40 * time.Second}} {
		clk.SetTime(controllertest.Noon.Add(step.after))
		p.enqueue(t.Context(), q, "shop", []string{"node-1"})
		if b := p.namespaces["shop"].bucket; b.Rate != step.rate || b.Burst != step.burst {
			t.Errorf("after %s %d a second, for %s, want %+v", step.after, b.Rate, b.Burst, step)
		}
	}
}

// Names of nothing that there is leave no trace, however a slice with them comes.
func TestSlicesThatNameNodesThatAreNotThere(t *testing.T) {
	p, clk, c := newEnqueueRig(t, 1)
	if err := c.Create(t.Context(), &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}); err != nil {
		t.Fatal(err)
	}
	number := 0
	slice := func() *discoveryv1.EndpointSlice {
		out := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "cart-1", Labels: map[string]string{discoveryv1.LabelServiceName: "cart"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(80))}},
		}
		names := []string{"node-0", "gone"}
		for range 100 {
			number++
			names = append(names, fmt.Sprintf("fake-%d", number))
		}
		for i, name := range names {
			out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.%d.%d", number/100, i)}, NodeName: &name})
		}
		return out
	}
	failing := interceptor.NewClient(c, interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
		return errors.New("stopped")
	}})
	works, fails := affectedNodes{c, p, newOverLimits(c), nil}.bySlice(), affectedNodes{failing, p, newOverLimits(failing), nil}.bySlice()
	for name, handle := range map[string]func(watches.Queue){
		"in the first list": func(q watches.Queue) {
			works.Create(t.Context(), event.CreateEvent{Object: slice(), IsInInitialList: true}, q)
		},
		"created": func(q watches.Queue) { works.Create(t.Context(), event.CreateEvent{Object: slice()}, q) },
		"updated": func(q watches.Queue) {
			for range 100 {
				works.Update(t.Context(), event.UpdateEvent{ObjectOld: slice(), ObjectNew: slice()}, q)
			}
		},
		"deleted": func(q watches.Queue) { works.Delete(t.Context(), event.DeleteEvent{Object: slice()}, q) },
		"without a cache": func(q watches.Queue) {
			fails.Update(t.Context(), event.UpdateEvent{ObjectOld: slice(), ObjectNew: slice()}, q)
		},
	} {
		clk.SetTime(clk.Now().Add(time.Second)) // none waits any more
		q := &controllertest.RecordingQueue{Added: map[string][]time.Duration{}}
		handle(q)
		if len(q.Added) != 2 || q.Added["node-0"] == nil || q.Added["gone"] == nil {
			t.Errorf("%s: enqueued %v, want the Node and that which has rules", name, q.Added)
		}
		if e := p.namespaces["shop"]; e != nil && (len(e.queued) > 2 || len(e.next) > 0 || e.bucket.Wait(&pacing.Claim{}, 1, clk.Now()) > 0) {
			t.Errorf("%s: it waits for %v, then %v", name, e.queued, e.next)
		}
	}
}

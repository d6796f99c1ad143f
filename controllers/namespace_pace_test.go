package controllers

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// createdLater is when Services of these tests were created: in the term.
var createdLater = noon.Add(time.Second)

// writer asks for the writes of Services and makes those that it may.
type writer struct {
	*serviceMemory
	stored  map[types.NamespacedName]bool
	written int // bytes
}

// write writes a Service, if it may, and returns for how long it must wait otherwise.
func (w *writer) write(key types.NamespacedName, bytes int, now time.Time) time.Duration {
	wait := w.waiting(key, w.stored[key], now)
	if wait == 0 {
		wait = w.wait(key, render.Load{Bytes: bytes}, w.stored[key], createdLater, now)
	}
	if wait == 0 {
		w.wrote(key, bytes, true, now)
		w.accepted(key)
		w.stored[key] = true
		w.written += bytes
	}
	return wait
}

func newWriter(t *testing.T) *writer {
	t.Helper()
	m, _ := newTestMemory(t)
	m.newTerm(noon)
	return &writer{serviceMemory: m, stored: map[types.NamespacedName]bool{}}
}

// service is one of many of a namespace.
func service(namespace string, i int) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: "s" + strconv.Itoa(i)}
}

// A namespace that changes Services all the time has the bytes of its share written, whether it
// changes those that there are, has them proxied now and then, or creates others. No other waits.
func TestNamespaceOverItsShareDelaysItselfAlone(t *testing.T) {
	const services, bytes, lasting = 2000, 10 << 10, 5 * time.Minute
	for name, next := range map[string]func(*writer, int) types.NamespacedName{
		"changed": func(_ *writer, i int) types.NamespacedName { return service("attacker", i%services) },
		"toggled": func(w *writer, i int) types.NamespacedName {
			key := service("attacker", i%services)
			if w.stored[key] {
				w.end(key)
				delete(w.stored, key)
			}
			return key
		},
		"created": func(w *writer, i int) types.NamespacedName {
			if i >= services { // the oldest goes, whether it was written or not
				old := service("attacker", i-services)
				w.forget(old)
				delete(w.stored, old)
			}
			return service("attacker", i)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, other := newWriter(t), 0
			end := noon.Add(lasting)
			for i, now := 0, noon; now.Before(end); i, now = i+1, now.Add(2*time.Millisecond) {
				w.write(next(w, i), bytes, now) // 5 MB a second
				if i%50 != 0 {
					continue
				}
				before := w.written
				if wait := w.write(service("victim", other%100), bytes, now); wait > 0 {
					t.Fatalf("after %s a Service of another namespace waits %s", now.Sub(noon), wait)
				}
				w.written = before
				other++
			}
			// The burst, and half a write for rounding.
			most := int((lasting+namespaceBurst).Seconds())*namespaceShare + bytes
			if w.written > most {
				t.Errorf("%d bytes were written in %s, at most %d may be", w.written, lasting, most)
			}
			if name != "created" && w.written < most*9/10 { // there, what would be written next is gone
				t.Errorf("%d bytes were written in %s, %d may be", w.written, lasting, most)
			}
			if len(w.services) > services+100 {
				t.Errorf("%d Services are remembered", len(w.services))
			}
		})
	}
}

// Ordinary changes never wait for the share of a namespace: neither 1,000 changed endpoints of
// large Services in 10 s, each written by itself, nor 10,000 Services that are created at once.
func TestNamespaceShareIsNotFeltOrdinarily(t *testing.T) {
	group := v1alpha1.EndpointGroup{State: v1alpha1.EndpointReady, Zones: []string{"europe-west-1a"}}
	for i := range 500 {
		group.Addresses = append(group.Addresses, fmt.Sprintf("10.250.%d.%d:8080", i/250, i%250+1))
	}
	rules := &v1alpha1.ServiceProxyRules{}
	rules.Spec.Ports = []v1alpha1.ServicePort{{Name: "http", Protocol: "TCP", Port: 80, Endpoints: []v1alpha1.EndpointGroup{group}}}
	_, large, err := measure(rules)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("500 endpoints take %d bytes", large)
	for name, c := range map[string]struct {
		writes, bytes int
		in            time.Duration
	}{
		"changed endpoints": {1000, large, 10 * time.Second},
		"created Services":  {10000, 1000, time.Second},
	} {
		p := newNamespacePace()
		for i := range c.writes {
			now := noon.Add(c.in * time.Duration(i) / time.Duration(c.writes))
			var of claim
			if wait := p.wait("shop", &of, c.bytes, now); wait > 0 {
				t.Fatalf("%s: number %d waits %s", name, i, wait)
			}
			p.wrote("shop", &of, c.bytes, now)
		}
	}
}

// Rules that have vanished are written at once, however much their namespace has written: agents
// retain them only as long as the inventory names them.
func TestVanishedRulesDoNotWaitForTheirNamespace(t *testing.T) {
	w := newWriter(t)
	w.pace.of("shop", noon).next = noon.Add(time.Minute)
	few := render.Load{Bytes: 1000}
	for name, c := range map[string]struct {
		prepare func(types.NamespacedName)
		created time.Time
		delayed bool
	}{
		"new":                 {func(types.NamespacedName) {}, createdLater, true},
		"older than the term": {func(types.NamespacedName) {}, noon.Add(-time.Hour), false},
		"vanished":            {func(key types.NamespacedName) { w.waiting(key, true, noon) }, createdLater, false},
		"vanished waiting": {func(key types.NamespacedName) {
			if w.wait(key, few, true, createdLater, noon) == 0 {
				t.Error("a change does not wait")
			}
		}, createdLater, false},
		"ended": {func(key types.NamespacedName) {
			w.end(key)
			w.waiting(key, true, noon) // by a cache that is behind
		}, noon.Add(-time.Hour), true},
		"ended and written": {func(key types.NamespacedName) {
			w.end(key)
			w.wrote(key, 1000, true, noon)
		}, createdLater, false},
	} {
		key := types.NamespacedName{Namespace: "shop", Name: name}
		c.prepare(key)
		before := len(w.delayedServices())
		wait := w.wait(key, few, false, c.created, noon)
		if delayed := len(w.delayedServices()) > before; wait > 0 != c.delayed || delayed != c.delayed {
			t.Errorf("%s: it waits %s, delayed %v, want %v", name, wait, delayed, c.delayed)
		}
		if again := w.waiting(key, false, noon); again > 0 != c.delayed {
			t.Errorf("%s: it need not be rendered for %s", name, again)
		}
	}
}

// What is delayed is announced once, as is its end, however it comes about.
func TestDelayedServicesAreAnnounced(t *testing.T) {
	m, changes := newTestMemory(t)
	m.newTerm(noon)
	m.pace.of("shop", noon).next = noon.Add(time.Minute)
	for name, end := range map[string]func(){
		"written":  func() { m.wrote(cart, 1000, true, noon) },
		"accepted": func() { m.accepted(cart) },
		"ended":    func() { m.end(cart) },
		"gone":     func() { m.forget(cart) },
		"refused":  func() { m.refuse(cart, "no", "no", 1, noon) },
	} {
		*changes = 0
		for range 2 {
			if m.wait(cart, render.Load{Bytes: 1000}, false, createdLater, noon) == 0 {
				t.Fatalf("%s: it does not wait", name)
			}
		}
		if *changes != 1 || len(m.delayedServices()) != 1 || !m.settled(cart) {
			t.Errorf("%s: %d changes announced, delayed %v", name, *changes, m.delayedServices())
		}
		if end(); *changes != 2 || len(m.delayedServices()) != 0 {
			t.Errorf("%s: then %d changes announced, delayed %v", name, *changes, m.delayedServices())
		}
		m.forget(cart)
	}
}

// Namespaces that have all their bytes again are forgotten.
func TestNamespacePaceForgets(t *testing.T) {
	p := newNamespacePace()
	for i := range 100 {
		var of claim
		p.wait(strconv.Itoa(i), &of, 1000, noon)
		p.wrote(strconv.Itoa(i), &of, 1000, noon)
	}
	var waits claim
	p.wait("busy", &waits, 64<<20, noon)
	p.of("other", noon.Add(namespaceBurst))
	if len(p.buckets) != 2 {
		t.Errorf("%d namespaces are remembered, want the busy one and that asked for", len(p.buckets))
	}
	p.giveBack("forgotten", &claim{bytes: 1000, at: noon})
	if len(p.buckets) != 2 {
		t.Error("giving back made a bucket")
	}
}

// indexing has a fake client know the indexes of the cache.
type indexing struct{ *fake.ClientBuilder }

func (i indexing) IndexField(_ context.Context, o client.Object, field string, of client.IndexerFunc) error {
	i.WithIndex(o, field, of)
	return nil
}

// A Service of a namespace over its share is neither written nor in the inventory, and is both in
// its time; that of another namespace is at once.
func TestServicesOfNamespaceOverItsShareAreWrittenInTheEnd(t *testing.T) {
	scheme, err := NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}})
	keys := map[string]types.NamespacedName{}
	eligible := map[types.NamespacedName]bool{}
	for _, namespace := range []string{"attacker", "victim"} {
		svc := serviceNamed(namespace, "cart")
		svc.CreationTimestamp = metav1.NewTime(createdLater)
		svc.Spec = corev1.ServiceSpec{ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7"}, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}
		builder.WithObjects(svc)
		keys[namespace] = client.ObjectKeyFromObject(svc)
		eligible[keys[namespace]] = true
	}
	if err := addIndexes(t.Context(), indexing{builder}); err != nil {
		t.Fatal(err)
	}
	c, rig := builder.Build(), newEventRig(t)
	m, _ := newTestMemory(t)
	m.newTerm(noon)
	r := &ServiceReconciler{
		leadership: always{}, client: c, live: c, events: rig.events, clock: rig.clock, metrics: m.metrics, memory: m,
		formats: newFormats(c, v1alpha1.FormatVersions()), overrides: newOverrides(c, rig.clock), surroundings: &surroundings{client: c},
	}
	expect := func(when, namespace string, want time.Duration, inventory ...string) {
		t.Helper()
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: keys[namespace]})
		if err != nil || result.RequeueAfter != want {
			t.Errorf("%s: %s comes again in %s (%v), want %s", when, namespace, result.RequeueAfter, err, want)
		}
		exists, err := get(t.Context(), c, client.ObjectKey{Name: rulesName(keys[namespace])}, &v1alpha1.ServiceProxyRules{})
		if err != nil || exists != (want == 0) {
			t.Errorf("%s: %s has rules: %v, %v", when, namespace, exists, err)
		}
		np := &NodeProxyReconciler{client: c, memory: m}
		got, err := np.inventory(t.Context(), eligible, nil)
		if err != nil || *got != render.Inventory(inventory) {
			t.Errorf("%s: the inventory is not of %v (%v)", when, inventory, err)
		}
	}
	m.pace.of("attacker", noon).next = noon.Add(time.Minute)
	expect("at first", "attacker", time.Minute, "victim.cart")
	expect("at first", "victim", 0, "victim.cart")
	rig.clock.Step(time.Second)
	expect("a second later", "attacker", 59*time.Second, "victim.cart")
	rig.clock.Step(59 * time.Second)
	expect("in its time", "attacker", 0, "victim.cart", "attacker.cart")
}

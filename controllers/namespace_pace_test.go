package controllers

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

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
		wait = w.wait(key, render.Load{Bytes: bytes}, w.stored[key], true, now)
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
	m.newTerm()
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
				w.released(key)
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
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "shop", Name: name} }
	var older []corev1.Service
	for _, name := range []string{"older than the term", "released", "came again"} {
		older = append(older, *serviceNamed("shop", name))
	}
	w.begin(older)
	w.begin([]corev1.Service{*serviceNamed("shop", "new")}) // it is known already
	for name, c := range map[string]struct {
		prepare func(types.NamespacedName)
		delayed bool
	}{
		"new":                 {func(types.NamespacedName) {}, true},
		"older than the term": {func(types.NamespacedName) {}, false},
		"came again":          {func(key types.NamespacedName) { w.forget(key) }, true},
		"vanished":            {func(key types.NamespacedName) { w.waiting(key, true, noon) }, false},
		"vanished waiting": {func(key types.NamespacedName) {
			if w.wait(key, few, true, true, noon) == 0 {
				t.Error("a change does not wait")
			}
		}, false},
		"released": {func(key types.NamespacedName) {
			w.end(key)
			w.released(key)
			w.waiting(key, true, noon) // by a cache that is behind
		}, true},
		"not released": {func(key types.NamespacedName) {
			w.waiting(key, true, noon)
			w.end(key)
		}, false},
		"released and written": {func(key types.NamespacedName) {
			w.end(key)
			w.released(key)
			w.wrote(key, 1000, true, noon)
		}, false},
	} {
		key := key(name)
		c.prepare(key)
		before := len(w.delayedServices())
		wait := w.wait(key, few, false, true, noon)
		if delayed := len(w.delayedServices()) > before; wait > 0 != c.delayed || delayed != c.delayed {
			t.Errorf("%s: it waits %s, delayed %v, want %v", name, wait, delayed, c.delayed)
		}
		if again := w.waiting(key, false, noon); again > 0 != c.delayed {
			t.Errorf("%s: it need not be rendered for %s", name, again)
		}
	}
	w.forget(key("older than the term"))
	if len(w.older) != 1 {
		t.Errorf("%d Services are known as older than the term, one is left", len(w.older))
	}
	w.newTerm()
	if w.begun() {
		t.Error("what is older is known before the new term has begun")
	}
}

// A new term begins with nothing that waits, nor with bytes taken for it.
func TestNewTermGivesBackWhatIsNotWritten(t *testing.T) {
	w := newWriter(t)
	full := noon.Add(time.Minute)
	w.pace.of("shop", noon).next = full
	for i := range 10 {
		w.wait(service("shop", i), render.Load{Bytes: 1 << 20}, i%2 == 0, true, noon)
	}
	if len(w.delayedServices()) != 5 {
		t.Fatalf("delayed are %v", w.delayedServices())
	}
	w.newTerm()
	if next := w.pace.of("shop", noon).next; !next.Equal(full) || len(w.delayedServices()) != 0 {
		t.Errorf("the next may be written at %s, want %s; delayed are %v", next, full, w.delayedServices())
	}
	if wait := w.waiting(service("shop", 0), true, noon); wait > 0 {
		t.Errorf("one that waited need not be rendered for %s", wait)
	}
}

// What is delayed is announced once, as is its end, however it comes about.
func TestDelayedServicesAreAnnounced(t *testing.T) {
	m, changes := newTestMemory(t)
	m.newTerm()
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
			if m.wait(cart, render.Load{Bytes: 1000}, false, true, noon) == 0 {
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
	const burst = time.Minute
	p := newBuckets(1<<20, burst, 1000)
	for i := range 100 {
		var of claim
		p.wait(strconv.Itoa(i), &of, 1000, noon)
		p.wrote(strconv.Itoa(i), &of, 1000, noon)
	}
	var waits claim
	p.wait("busy", &waits, 128<<20, noon)
	p.of("other", noon.Add(burst))
	if len(p.all) != 2 {
		t.Errorf("%d namespaces are remembered, want the busy one and that asked for", len(p.all))
	}
	p.giveBack("forgotten", &claim{bytes: 1000, at: noon})
	if len(p.all) != 2 {
		t.Error("giving back made a bucket")
	}
}

// indexing has a fake client know the indexes of the cache.
type indexing struct{ *fake.ClientBuilder }

func (i indexing) IndexField(_ context.Context, o client.Object, field string, of client.IndexerFunc) error {
	i.WithIndex(o, field, of)
	return nil
}

// budgetRig reconciles Services against a fake API server.
type budgetRig struct {
	*ServiceReconciler
	t     *testing.T
	c     client.WithWatch
	clock *clocktesting.FakeClock
	q     *recordingQueue // of what events have looked at
}

// knownRanges are the service ranges of a cluster.
type knownRanges struct{ render.ServiceRanges }

func (r knownRanges) current() (render.ServiceRanges, bool) { return r.ServiceRanges, true }

func newBudgetRig(t *testing.T, services ...*corev1.Service) *budgetRig {
	t.Helper()
	scheme, err := NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}})
	if err := addIndexes(t.Context(), indexing{builder}); err != nil {
		t.Fatal(err)
	}
	c, clk := builder.Build(), clocktesting.NewFakeClock(noon)
	m, _ := newTestMemory(t)
	m.newTerm()
	m.begin(nil) // all Services are new
	r := &budgetRig{t: t, c: c, clock: clk, q: &recordingQueue{added: map[string][]time.Duration{}}, ServiceReconciler: &ServiceReconciler{
		leadership: always{}, client: c, live: c, events: newEvents(newEventQueue(always{}, c, clk, m.metrics), clk), clock: clk, metrics: m.metrics, memory: m,
		formats: newFormats(c, v1alpha1.FormatVersions()), overrides: newOverrides(c, clk), surroundings: &surroundings{client: c, ranges: knownRanges{}},
	}}
	for _, svc := range services {
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "10.96.0.7", []string{"10.96.0.7"}
		svc.Spec.Ports = []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}
		r.ok(c.Create(t.Context(), svc))
	}
	return r
}

func (r *budgetRig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// reconcile expects that a Service comes again after so long, and returns its rules, nil for none.
func (r *budgetRig) reconcile(when string, key types.NamespacedName, want time.Duration) *v1alpha1.ServiceProxyRules {
	r.t.Helper()
	result, err := r.Reconcile(r.t.Context(), ctrl.Request{NamespacedName: key})
	if err != nil || result.RequeueAfter != want {
		r.t.Errorf("%s: %s comes again in %s (%v), want %s", when, key, result.RequeueAfter, err, want)
	}
	rules := &v1alpha1.ServiceProxyRules{}
	exists, err := get(r.t.Context(), r.c, client.ObjectKey{Name: rulesName(key)}, rules)
	r.ok(err)
	if !exists {
		return nil
	}
	return rules
}

// change changes a Service as its owner does.
func (r *budgetRig) change(key types.NamespacedName, change func(*corev1.Service)) {
	r.t.Helper()
	svc := &corev1.Service{}
	r.ok(r.c.Get(r.t.Context(), key, svc))
	change(svc)
	r.ok(r.c.Update(r.t.Context(), svc))
}

// A Service of a namespace over its share is not written, and reported as delayed, until
// its time; that of another namespace is at once.
func TestServicesOfNamespaceOverItsShareAreWrittenInTheEnd(t *testing.T) {
	attacker, victim := serviceNamed("attacker", "cart"), serviceNamed("victim", "cart")
	r := newBudgetRig(t, attacker, victim)
	keys := map[string]types.NamespacedName{"attacker": client.ObjectKeyFromObject(attacker), "victim": client.ObjectKeyFromObject(victim)}
	expect := func(when, namespace string, want time.Duration, delayed ...types.NamespacedName) {
		t.Helper()
		if rules := r.reconcile(when, keys[namespace], want); (rules != nil) != (want == 0) {
			t.Errorf("%s: %s has rules: %v", when, namespace, rules != nil)
		}
		if got := r.memory.delayedServices(); !slices.Equal(got, delayed) {
			t.Errorf("%s: delayed are %v, want %v", when, got, delayed)
		}
	}
	r.memory.pace.of("attacker", noon).next = noon.Add(time.Minute)
	expect("at first", "attacker", time.Minute, keys["attacker"])
	expect("at first", "victim", 0, keys["attacker"])
	r.clock.Step(time.Second)
	expect("a second later", "attacker", 59*time.Second, keys["attacker"])
	r.clock.Step(59 * time.Second)
	expect("in its time", "attacker", 0)
}

// localPolicy sets a field of all Services.
func localPolicy() *v1alpha1.ServiceProxyPolicy {
	policy := &v1alpha1.ServiceProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: "local"}}
	policy.Spec.Overrides.InternalTrafficPolicy = new(v1alpha1.TrafficPolicyLocal)
	return policy
}

// What Nodes, API servers and service ranges have done to addresses is rendered at once, whatever the
// namespace of a Service has written; what its owner changes after that waits as before.
func TestChangedAddressesDoNotWaitForTheNamespace(t *testing.T) {
	svc := serviceNamed("shop", "cart")
	svc.Spec.ExternalIPs = []string{"192.0.2.7", "198.51.100.7", "10.99.0.7"}
	r, key := newBudgetRig(t, svc), client.ObjectKeyFromObject(svc)
	r.reconcile("at first", key, 0)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.7"}}}}
	np := &v1alpha1.NodeProxy{Spec: v1alpha1.NodeProxySpec{APIServer: &v1alpha1.APIServerSettings{Endpoints: []string{"https://198.51.100.7:80"}}}}
	policy := localPolicy()
	for name, c := range map[string]struct {
		cause func()
		seen  func(*v1alpha1.ServiceProxyRules) bool
	}{
		"Node": {func() {
			r.ok(r.c.Create(t.Context(), node))
			r.addressEvents(addressesOfNode).Create(t.Context(), event.CreateEvent{Object: node}, r.q)
		}, func(rules *v1alpha1.ServiceProxyRules) bool {
			return slices.Equal(rules.Spec.NodeAddresses, []string{"192.0.2.7"})
		}},
		"API server": {func() {
			stored := &v1alpha1.NodeProxy{}
			r.ok(r.c.Get(t.Context(), client.ObjectKey{Name: v1alpha1.NodeProxyName}, stored))
			stored.Spec = np.Spec
			r.ok(r.c.Update(t.Context(), stored))
			r.addressEvents(addressesNamed).Create(t.Context(), event.CreateEvent{Object: np}, r.q)
		}, func(rules *v1alpha1.ServiceProxyRules) bool {
			return !slices.Contains(rules.Spec.ExternalIPs, "198.51.100.7")
		}},
		"service range": {func() {
			cidr := &networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.99.0.0/24"}}}
			r.surroundings.ranges = knownRanges{render.NewServiceRanges(cidr.Spec.CIDRs)}
			for _, request := range r.servicesWithin(t.Context(), cidr) {
				r.q.Add(request)
			}
		}, func(rules *v1alpha1.ServiceProxyRules) bool {
			return !slices.Contains(rules.Spec.ExternalIPs, "10.99.0.7")
		}},
		"policy": {func() {
			r.ok(r.c.Create(t.Context(), policy))
			r.ok(r.c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}))
			r.policyEvents().Create(t.Context(), event.CreateEvent{Object: policy}, r.q)
		}, func(rules *v1alpha1.ServiceProxyRules) bool {
			return slices.Equal(rules.Spec.Policies, []string{"local"})
		}},
	} {
		r.memory.pace.of("shop", noon).next = r.clock.Now().Add(time.Minute)
		r.change(key, func(s *corev1.Service) { s.Spec.Ports[0].Port++ })
		r.reconcile(name+": the owner's change", key, time.Minute)
		c.cause()
		if r.q.added["cart"] == nil {
			t.Errorf("%s: it is not looked at", name)
		}
		if rules := r.reconcile(name, key, 0); !c.seen(rules) {
			t.Errorf("%s: it is not in the rules: %+v", name, rules.Spec)
		}
		r.change(key, func(s *corev1.Service) { s.Spec.Ports[0].Port++ })
		r.memory.pace.of("shop", noon).next = r.clock.Now().Add(time.Minute)
		r.reconcile(name+": another change of the owner", key, time.Minute)
		r.clock.Step(time.Minute)
		r.reconcile(name+": in its time", key, 0)
		r.q.added = map[string][]time.Duration{}
	}
}

// A change of policies does not wait for the namespace either once its turn has come; until then, what
// the owner changes does.
func TestTurnOfPoliciesDoesNotWaitForTheNamespace(t *testing.T) {
	svc, other := serviceNamed("shop", "cart"), serviceNamed("other", "cart")
	r, key, otherKey := newBudgetRig(t, svc, other), client.ObjectKeyFromObject(svc), client.ObjectKeyFromObject(other)
	for _, namespace := range []string{"shop", "other"} {
		r.ok(r.c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	}
	r.reconcile("at first", key, 0)
	r.reconcile("at first", otherKey, 0)
	const first = 20 * time.Millisecond // 50 Services a second
	policy := localPolicy()
	r.ok(r.c.Create(t.Context(), policy))
	r.policyEvents().Create(t.Context(), event.CreateEvent{Object: policy}, r.q)
	r.reconcile("the other one takes its turn", otherKey, 0)
	r.memory.pace.of("shop", noon).next = r.clock.Now().Add(time.Minute)
	r.reconcile("before its turn", key, first)
	r.change(key, func(s *corev1.Service) { s.Spec.Ports[0].Port++ })
	if rules := r.reconcile("the owner's change before its turn", key, first); rules.Spec.Ports[0].Port != 80 {
		t.Error("the owner's change does not wait")
	}
	r.clock.Step(first)
	if rules := r.reconcile("in its turn", key, 0); len(rules.Spec.Policies) != 1 {
		t.Errorf("its policies are %v", rules.Spec.Policies)
	}
}

// A Service that is not eligible for a moment, and whose rules stay, has them written again at once if they
// vanish. One whose rules were released is new.
func TestServiceThatWasNotEligibleForAMoment(t *testing.T) {
	svc := serviceNamed("shop", "cart")
	r, key := newBudgetRig(t, svc), client.ObjectKeyFromObject(svc)
	r.reconcile("at first", key, 0)
	external := svc.DeepCopy()
	external.Spec.Type = corev1.ServiceTypeExternalName
	behind := interceptor.NewClient(r.c, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if into, is := o.(*corev1.Service); is {
			external.DeepCopyInto(into)
			return nil
		}
		return c.Get(ctx, key, o, opts...)
	}})
	r.client = behind
	r.reconcile("not eligible by the cache", key, retrySoon)
	r.client = r.c
	r.memory.pace.of("shop", noon).next = noon.Add(time.Minute)
	rules := r.reconcile("eligible again", key, 0)
	r.ok(r.c.Delete(t.Context(), rules))
	if r.reconcile("its rules have vanished", key, 0) == nil {
		t.Error("they are not written again")
	}
	r.change(key, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName })
	r.reconcile("not eligible", key, 0)
	r.change(key, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	if r.reconcile("eligible after that", key, time.Minute) != nil {
		t.Error("new rules do not wait")
	}
	r.memory.newTerm()
	r.change(key, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName })
	r.reconcile("not eligible at the beginning of a term", key, 0)
	r.change(key, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	if r.reconcile("eligible later in the term", key, time.Minute) != nil {
		t.Error("rules that are new in the term do not wait")
	}
}

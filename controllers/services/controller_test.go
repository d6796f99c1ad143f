package services

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
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
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/formats"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/overrides"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
)

// budgetRig reconciles Services against a fake API server.
type budgetRig struct {
	*Reconciler
	t     *testing.T
	c     client.WithWatch
	clock *clocktesting.FakeClock
	q     *controllertest.RecordingQueue // what events have enqueued
}

// knownRanges are the service ranges of a cluster.
func knownRanges(cidrs ...string) func() (render.ServiceRanges, bool) {
	return func() (render.ServiceRanges, bool) { return render.NewServiceRanges(cidrs), true }
}

func newBudgetRig(t *testing.T, services ...*corev1.Service) *budgetRig {
	t.Helper()
	scheme, err := objects.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}})
	if err := objects.AddIndexes(t.Context(), controllertest.Indexing{ClientBuilder: builder}); err != nil {
		t.Fatal(err)
	}
	c, clk := builder.Build(), clocktesting.NewFakeClock(controllertest.Noon)
	m, _ := newTestMemory(t)
	m.NewTerm()
	m.begin(nil) // all Services are new
	r := &budgetRig{t: t, c: c, clock: clk, q: &controllertest.RecordingQueue{Added: map[string][]time.Duration{}}, Reconciler: &Reconciler{
		Client: c, Live: c, Events: events.NewRecorder(events.NewQueue(leader.Always{}, c, clk, m.metrics), clk), Clock: clk, Metrics: m.metrics, Memory: m,
		Formats: formats.New(c, v1alpha1.FormatVersions()), Overrides: overrides.New(c, clk), Ranges: knownRanges(),
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
	exists, err := objects.Get(r.t.Context(), r.c, client.ObjectKey{Name: objects.RulesName(key)}, rules)
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
	attacker, victim := controllertest.ServiceNamed("attacker", "cart"), controllertest.ServiceNamed("victim", "cart")
	r := newBudgetRig(t, attacker, victim)
	keys := map[string]types.NamespacedName{"attacker": client.ObjectKeyFromObject(attacker), "victim": client.ObjectKeyFromObject(victim)}
	expect := func(when, namespace string, want time.Duration, delayed ...types.NamespacedName) {
		t.Helper()
		if rules := r.reconcile(when, keys[namespace], want); (rules != nil) != (want == 0) {
			t.Errorf("%s: %s has rules: %v", when, namespace, rules != nil)
		}
		if got := r.Memory.Delayed(); !slices.Equal(got, delayed) {
			t.Errorf("%s: delayed are %v, want %v", when, got, delayed)
		}
	}
	r.Memory.pace.Of("attacker", controllertest.Noon).Next = controllertest.Noon.Add(time.Minute)
	expect("initially", "attacker", time.Minute, keys["attacker"])
	expect("initially", "victim", 0, keys["attacker"])
	r.clock.Step(time.Second)
	expect("a second later", "attacker", 59*time.Second, keys["attacker"])
	r.clock.Step(59 * time.Second)
	expect("after its wait", "attacker", 0)
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
	svc := controllertest.ServiceNamed("shop", "cart")
	svc.Spec.ExternalIPs = []string{"192.0.2.7", "198.51.100.7", "10.99.0.7"}
	r, key := newBudgetRig(t, svc), client.ObjectKeyFromObject(svc)
	r.reconcile("initially", key, 0)
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
			r.Ranges = knownRanges(cidr.Spec.CIDRs...)
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
		r.Memory.pace.Of("shop", controllertest.Noon).Next = r.clock.Now().Add(time.Minute)
		r.change(key, func(s *corev1.Service) { s.Spec.Ports[0].Port++ })
		r.reconcile(name+": the owner's change", key, time.Minute)
		c.cause()
		if r.q.Added["cart"] == nil {
			t.Errorf("%s: it is not enqueued", name)
		}
		if rules := r.reconcile(name, key, 0); !c.seen(rules) {
			t.Errorf("%s: it is not in the rules: %+v", name, rules.Spec)
		}
		r.change(key, func(s *corev1.Service) { s.Spec.Ports[0].Port++ })
		r.Memory.pace.Of("shop", controllertest.Noon).Next = r.clock.Now().Add(time.Minute)
		r.reconcile(name+": another change of the owner", key, time.Minute)
		r.clock.Step(time.Minute)
		r.reconcile(name+": after its wait", key, 0)
		r.q.Added = map[string][]time.Duration{}
	}
}

// A change of policies does not wait for the namespace either once its delay is over; until then, what
// the owner changes does.
func TestTurnOfPoliciesDoesNotWaitForTheNamespace(t *testing.T) {
	svc, other := controllertest.ServiceNamed("shop", "cart"), controllertest.ServiceNamed("other", "cart")
	r, key, otherKey := newBudgetRig(t, svc, other), client.ObjectKeyFromObject(svc), client.ObjectKeyFromObject(other)
	for _, namespace := range []string{"shop", "other"} {
		r.ok(r.c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	}
	r.reconcile("initially", key, 0)
	r.reconcile("initially", otherKey, 0)
	const first = 20 * time.Millisecond // 50 Services a second
	policy := localPolicy()
	r.ok(r.c.Create(t.Context(), policy))
	r.policyEvents().Create(t.Context(), event.CreateEvent{Object: policy}, r.q)
	r.reconcile("the other one passes", otherKey, 0)
	r.Memory.pace.Of("shop", controllertest.Noon).Next = r.clock.Now().Add(time.Minute)
	r.reconcile("during its delay", key, first)
	r.change(key, func(s *corev1.Service) { s.Spec.Ports[0].Port++ })
	if rules := r.reconcile("the owner's change during its delay", key, first); rules.Spec.Ports[0].Port != 80 {
		t.Error("the owner's change does not wait")
	}
	r.clock.Step(first)
	if rules := r.reconcile("after its delay", key, 0); len(rules.Spec.Policies) != 1 {
		t.Errorf("its policies are %v", rules.Spec.Policies)
	}
}

// A Service that is not eligible for a moment, and whose rules stay, has them written again at once if they
// vanish. One whose rules were released is new.
func TestServiceThatWasNotEligibleForAMoment(t *testing.T) {
	svc := controllertest.ServiceNamed("shop", "cart")
	r, key := newBudgetRig(t, svc), client.ObjectKeyFromObject(svc)
	r.reconcile("initially", key, 0)
	external := svc.DeepCopy()
	external.Spec.Type = corev1.ServiceTypeExternalName
	behind := interceptor.NewClient(r.c, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if into, is := o.(*corev1.Service); is {
			external.DeepCopyInto(into)
			return nil
		}
		return c.Get(ctx, key, o, opts...)
	}})
	r.Client = behind
	r.reconcile("not eligible by the cache", key, retry.Soon)
	r.Client = r.c
	r.Memory.pace.Of("shop", controllertest.Noon).Next = controllertest.Noon.Add(time.Minute)
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
	r.Memory.NewTerm()
	r.change(key, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName })
	r.reconcile("not eligible at the beginning of a term", key, 0)
	r.change(key, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	if r.reconcile("eligible later in the term", key, time.Minute) != nil {
		t.Error("rules that are new in the term do not wait")
	}
}

// A Service that is deleted while nothing is reconciled, as on a standby, is ended by the next term.
func TestNewTermEndsDeletedServices(t *testing.T) {
	gone, stays := controllertest.ServiceNamed("shop", "gone"), controllertest.ServiceNamed("shop", "stays")
	r := newBudgetRig(t, gone, stays)
	for _, svc := range []*corev1.Service{gone, stays} {
		if r.reconcile("initially", client.ObjectKeyFromObject(svc), 0) == nil {
			t.Fatal("no rules")
		}
	}
	r.ok(r.c.Delete(t.Context(), gone))
	for _, request := range r.everyService(t.Context(), nil) {
		rules := r.reconcile("in the new term", request.NamespacedName, 0)
		if want := request.Name == stays.Name; (rules != nil) != want {
			t.Errorf("%s has rules: %t", request, !want)
		}
	}
}

// Slices may change as often as their owner likes without changing the rules of a large Service. It is
// rendered ten times in a row, and then once a second.
func TestRenderingsInVainArePaced(t *testing.T) {
	svc := controllertest.ServiceNamed("shop", "cart")
	r, key := newBudgetRig(t, svc), client.ObjectKeyFromObject(svc)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: key.Namespace, Name: "cart-1", Labels: map[string]string{discoveryv1.LabelServiceName: key.Name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080))}},
	}
	for i := range 600 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.%d.%d", i/200, 1+i%200)}})
	}
	r.ok(r.c.Create(t.Context(), slice))
	r.reconcile("initially", key, 0)
	for range maxVain {
		r.reconcile("after an event that changes nothing", key, 0)
	}
	r.reconcile("after one more", key, time.Second)
	r.clock.Step(time.Second)
	r.reconcile("a second later", key, 0)
	r.reconcile("and again", key, time.Second)
	r.clock.Step(2 * time.Second)
	r.reconcile("after a silence", key, 0)
	r.reconcile("and again after a silence", key, 0)
}

// A large Service asks in time when its turn to get the overrides of a policy comes, however often it
// was rendered before.
func TestPacingKeepsTheTurnOfAPolicy(t *testing.T) {
	m, _ := newTestMemory(t)
	load, turn := render.Load{Endpoints: 10_000}, 20*time.Millisecond
	for range 2 * maxVain {
		m.inVain(cart, load, turn, controllertest.Noon)
	}
	if wait := m.waiting(cart, true, controllertest.Noon); wait != turn {
		t.Errorf("it waits %s, want %s", wait, turn)
	}
	m.pause(cart, load, turn, controllertest.Noon)
	if wait := m.waiting(cart, true, controllertest.Noon); wait != turn {
		t.Errorf("after one that is too large it waits %s, want %s", wait, turn)
	}
}

// While nodeproxy is switched off, nothing is remembered of the Services that tenants create and delete.
func TestNothingIsRememberedWhileSwitchedOff(t *testing.T) {
	r := newBudgetRig(t)
	r.ok(r.c.Delete(t.Context(), &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}))
	key := types.NamespacedName{Namespace: "attacker", Name: "gone"}
	r.Memory.note(key, change{slice: controllertest.Noon})
	r.Memory.notRendered(key, "reason", "message", 1, controllertest.Noon)
	r.reconcile("switched off", key, 0)
	if len(r.Memory.services) != 0 || len(r.Memory.Unrendered()) != 0 {
		t.Errorf("%d Services are remembered, %d unrendered", len(r.Memory.services), len(r.Memory.Unrendered()))
	}
	// Switched on again, existing Services are not new: agents may retain their rules.
	svc := controllertest.ServiceNamed("shop", "cart")
	svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "10.96.0.8", []string{"10.96.0.8"}
	svc.Spec.Ports = []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}
	r.ok(r.c.Create(t.Context(), svc))
	r.ok(r.c.Create(t.Context(), &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}))
	r.Memory.pace.Of("shop", controllertest.Noon).Next = controllertest.Noon.Add(time.Minute)
	if r.reconcile("switched on again", client.ObjectKeyFromObject(svc), 0) == nil {
		t.Error("an existing Service waits for its namespace's bytes as if it were new")
	}
}

// TestAPIServerAmongDecoys: EndpointSlices that others add to default/kubernetes do not free an API
// server's address.
func TestAPIServerAmongDecoys(t *testing.T) {
	svc := controllertest.ServiceNamed("shop", "cart")
	svc.Spec.ExternalIPs = []string{"192.0.2.10", "192.0.2.11"}
	r := newBudgetRig(t, svc)
	r.Client = controllertest.AmongDecoys(t, r.c)
	rules := r.reconcile("first", cart, 0)
	if rules == nil || len(rules.Spec.ExternalIPs) != 1 || len(rules.Spec.SkippedAddresses) != 1 {
		t.Errorf("the API server's address is not skipped: %+v", rules)
	}
}

package simulated

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// servicesVariable states how many Services there are in the tests of their policies.
	servicesVariable = "SIMULATED_SERVICES"
	fewServices      = 300
	// perSecond is how many Services a change may reach in a second.
	perSecond = 50
)

func serviceName(i int) string { return fmt.Sprintf("service-%04d", i) }

// addServices adds Services to namespace shop, and waits until they are rendered. They
// are gone at the end of the test.
func (w *world) addServices(n int) {
	w.t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"team": "shop"}}}
	if err := w.api.Create(w.t.Context(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
		w.t.Fatal(err)
	}
	const workers = 8
	service := func(i int) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: serviceName(i)},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		}
	}
	workqueue.ParallelizeUntil(w.t.Context(), workers, n, func(i int) {
		if err := w.api.Create(w.t.Context(), service(i)); err != nil {
			w.t.Errorf("creating a Service: %v", err)
		}
	})
	w.t.Cleanup(func() {
		w.controller.stop()
		workqueue.ParallelizeUntil(context.Background(), workers, n, func(i int) {
			if err := w.api.Delete(context.Background(), service(i)); client.IgnoreNotFound(err) != nil {
				w.t.Errorf("deleting a Service: %v", err)
			}
		})
	})
	w.await("all Services are rendered", func() bool {
		return len(current[*v1alpha1.ServiceProxyRules](w.history)) > n // and that of the API server
	})
}

// shaped are the writes by which Services in shop have got other overrides, after a
// version.
func (w *world) shaped(since uint64) (out []moment) {
	moments, _ := w.history.all()
	has := map[string]string{}
	for _, m := range moments {
		rules, ok := m.object.(*v1alpha1.ServiceProxyRules)
		if !ok || m.gone {
			continue
		}
		grant := rules.Annotations[v1alpha1.AnnotationOverrides]
		if m.version > since && has[rules.Name] != grant {
			out = append(out, m)
		}
		has[rules.Name] = grant
	}
	return out
}

// awaitServicePolicy waits until Ready of the policy affinity has a reason for its
// newest generation.
func (w *world) awaitServicePolicy(reason string, within time.Duration) *v1alpha1.ServiceProxyPolicy {
	w.t.Helper()
	stored := &v1alpha1.ServiceProxyPolicy{}
	if err := w.api.Get(w.t.Context(), client.ObjectKey{Name: "affinity"}, stored); err != nil {
		w.t.Fatal(err)
	}
	w.history.await(w.t, "Ready of policy affinity has not reason "+reason, within, func() bool {
		p := find[*v1alpha1.ServiceProxyPolicy](w.history, "affinity")
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
		return c != nil && c.ObservedGeneration >= stored.Generation && c.Reason == reason
	})
	return find[*v1alpha1.ServiceProxyPolicy](w.history, "affinity")
}

// TestServicesChangeAtAPace: 50 in a second at most, none when a node rejects what has
// become of one, each once, whatever becomes of the controller.
func TestServicesChangeAtAPace(t *testing.T) {
	t.Parallel()
	n := number(t, servicesVariable, fewServices)
	w := newWorldOf(t, 3)
	w.addServices(n)
	w.controller.stop() // which remembers for a minute that they have just come
	w.startController()
	begin := w.history.latest()
	w.create(&v1alpha1.ServiceProxyPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "affinity"},
		Spec: v1alpha1.ServiceProxyPolicySpec{
			NamespaceSelector: v1alpha1.LabelSelector{MatchLabels: map[string]string{"team": "shop"}},
			Overrides:         v1alpha1.ServiceOverrides{SessionAffinity: &v1alpha1.SessionAffinityOverride{ClientIPTimeoutSeconds: 600}},
		},
	})
	w.await("some Services have it", func() bool { return len(w.shaped(begin)) >= perSecond })
	w.controller.kill()
	w.startController()
	w.await("more Services have it", func() bool { return len(w.shaped(begin)) >= 2*perSecond })

	first := w.shaped(begin)[0].object.(*v1alpha1.ServiceProxyRules)
	_, rejectedName, _ := strings.Cut(first.Name, ".")
	rejected := "shop/" + rejectedName
	w.fleet.behave(rejecting(rejected), nodeName(1))
	w.await("a node rejects a Service", func() bool { return programmedReason(w.rules(nodeName(1))) == "Programmed True SomeServicesRejected" })
	late := version(w.rules(nodeName(1)))
	p := w.awaitServicePolicy(v1alpha1.ReasonRolloutHalted, patience)
	if e := p.Status.Examples; len(e) == 0 || e[0].Reason != v1alpha1.ReasonRejected || e[0].Name != rejectedName {
		t.Errorf("examples: %+v", e)
	}
	if more := len(w.shaped(late)); more > perSecond {
		t.Errorf("%d Services more were changed after a node rejected one", more)
	}
	stopped := w.history.latest()
	w.controller.stop()
	w.startController() // it sees the same
	edit(w, node(nodeName(0)), func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "z" })
	w.await("it works", func() bool { return w.rules(nodeName(0)).Spec.Node.Zone == "z" })
	same(t, "Services changed while it has stopped", len(w.shaped(stopped)), 0)

	w.fleet.behave(always(works), nodeName(1))
	w.awaitServicePolicy(v1alpha1.ReasonApplied, patience+time.Duration(n/perSecond)*2*time.Second)
	all := w.shaped(begin)
	same(t, "changes of Services", len(all), n)
	if took, least := all[n-1].at.Sub(all[0].at), time.Duration(n-1)*time.Second/perSecond; took < least-time.Second {
		t.Errorf("%d Services were changed in %s, which takes %s at %d a second", n, took, least, perSecond)
	} else {
		t.Logf("%d Services were changed in %s, with two interruptions", n, took)
	}
}

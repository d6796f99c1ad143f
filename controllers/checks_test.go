package controllers_test

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers"
)

// That nothing happens proves something only once a controller has looked at what is to
// make no difference. What is here proves that it has, in three steps: its caches have what
// the API server holds; then a reconcile begins, of a request that is queued behind all
// earlier ones; then nothing is queued or running any more.

// marker is the name of objects that wake reconcilers and concern none of them. Events of
// one watch come in order, so a marker's comes behind those of all that a spec has changed
// there. What a slice wakes has a name of its own, to distinguish it from what a Service or a Node
// wakes.
const (
	marker        = "marker"
	markerOfSlice = "marker-of-slice"
)

// between is more than the time that any reconciler leaves between two looks: when the
// clock has been put forward by it, the next reconcile looks.
const between = 1100 * time.Millisecond

// requestsOf are the requests, as "namespace/name", by which markers wake a controller.
// Those that have one request for everything look at all of the cache each time.
var requestsOf = map[string][]string{
	"node":          {"/" + marker},
	"rollout":       {"/cluster"},
	"startup-taint": {"/" + marker},
	"service":       {"default/" + marker, "default/" + markerOfSlice},
	"servicepolicy": {"/cluster"},
	"nodeproxy":     {"/cluster"},
	"apiservers":    {"/cluster"},
	"agents":        {"/cluster"},
}

// looks returns when controllers have looked at all that has happened before, and are idle.
// It puts the clock forward a little.
func (r *running) looks(ctx context.Context, names ...string) {
	GinkgoHelper()
	desired := map[string][]string{}
	for _, name := range names {
		Expect(requestsOf).To(HaveKey(name))
		desired[name] = requestsOf[name]
	}
	_, agents := desired["agents"]
	_, apiServers := desired["apiservers"]
	_, nodes := desired["node"]
	ofSlice := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: markerOfSlice, Labels: map[string]string{corev1.LabelOSStable: "windows"}}}
	if nodes { // a slice wakes only a Node that is there, and its own events come first
		r.looksAt(ctx, "node", func() { Expect(k8s.Create(ctx, ofSlice)).To(Succeed()) }, "/"+markerOfSlice)
		r.looksAt(ctx, "node", func() {
			slice := sliceMarker()
			Expect(k8s.Create(ctx, slice)).To(Succeed())
			Expect(k8s.Delete(ctx, slice)).To(Succeed())
		}, "/"+markerOfSlice)
	}
	r.woken(ctx, desired, func() {
		var marks []client.Object
		marks = append(marks,
			&corev1.Node{ // not one that gets rules
				ObjectMeta: metav1.ObjectMeta{Name: marker, Labels: map[string]string{corev1.LabelOSStable: "windows"}},
				Spec:       corev1.NodeSpec{Taints: []corev1.Taint{starting}},
			},
			&corev1.Service{ // not one that is proxied
				ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: marker},
				Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"},
			},
			sliceMarker(),
		)
		if apiServers {
			marks = append(marks, &discoveryv1.EndpointSlice{ // names none; their Service is rendered again
				ObjectMeta: metav1.ObjectMeta{
					Namespace: metav1.NamespaceDefault, Name: marker + "-kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
				},
				AddressType: discoveryv1.AddressTypeIPv4,
			})
		}
		for _, mark := range marks {
			Expect(k8s.Create(ctx, mark)).To(Succeed())
		}
		if nodes {
			marks = append(marks, ofSlice)
		}
		for _, mark := range marks {
			Expect(k8s.Delete(ctx, mark)).To(Succeed())
		}
		if agents {
			daemonSet, err := agentsOf(ctx)()
			Expect(err).NotTo(HaveOccurred())
			mark := fmt.Sprintf(`{"metadata":{"annotations":{"example.com/mark":"%d"}}}`, time.Now().UnixNano())
			Expect(k8s.Patch(ctx, daemonSet, client.RawPatch(types.MergePatchType, []byte(mark)))).To(Succeed())
		}
	})
}

// sliceMarker is of no Service.
func sliceMarker() *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: marker, Labels: map[string]string{discoveryv1.LabelServiceName: markerOfSlice},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{at("192.0.2.99", markerOfSlice)},
		Ports: []discoveryv1.EndpointPort{{Name: new("marker"), Port: new(int32(8080))}},
	}
}

// looksAt is looks of one controller at requests, as "namespace/name", that wake makes.
func (r *running) looksAt(ctx context.Context, name string, wake func(), requests ...string) {
	GinkgoHelper()
	r.woken(ctx, map[string][]string{name: requests}, wake)
}

// woken waits until wake has woken controllers, and they are idle again.
func (r *running) woken(ctx context.Context, desired map[string][]string, wake func()) {
	GinkgoHelper()
	r.working(maps.Keys(desired)) // else they may not follow anything yet
	Eventually(r.upToDate).WithArguments(ctx).Should(Succeed())
	before := r.reconciles.begun()
	testClock.putForward(between)
	wake()
	Eventually(func(g Gomega) {
		now := r.reconciles.begun()
		for name, requests := range desired {
			for _, request := range requests {
				g.Expect(now[name+" "+request]).To(BeNumerically(">", before[name+" "+request]), "looks of controller %s at %s", name, request)
			}
		}
	}).Should(Succeed())
	r.idle(maps.Keys(desired))
}

// firstLooks returns when controllers that have just started have looked at all that there
// was then, which must be something, and are idle.
func (r *running) firstLooks(names ...string) {
	GinkgoHelper()
	r.working(slices.Values(names))
	r.idle(slices.Values(names))
	for _, name := range names {
		Expect(maps.Keys(r.reconciles.begun())).To(ContainElement(HavePrefix(name+" ")), "looks of controller %s", name)
	}
}

// working waits until controllers work on their queues, which they do once all that there
// was at the start is in them.
func (r *running) working(names iter.Seq[string]) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		working := r.reconciles.working()
		for name := range names {
			g.Expect(working).To(HaveKey(name))
		}
	}).Should(Succeed())
}

// looksAtLeases returns when a whole look at the agents' Leases has begun and ended.
func (r *running) looksAtLeases() {
	GinkgoHelper()
	const looks = "nodeproxy_controller_agent_checks_total"
	before := r.metric(looks) // one may be under way
	Eventually(func() float64 { return r.metric(looks) }).Should(BeNumerically(">=", before+2))
}

// idle waits until several controllers have nothing to do at the same time.
func (r *running) idle(names iter.Seq[string]) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		due := dueReconciles()
		for name := range names {
			g.Expect(due[name]-r.dueBefore[name]).To(BeZero(), "reconciles that controller %s has yet to finish", name)
		}
	}).Should(Succeed())
}

// dueReconciles returns how many requests each controller has taken into its queue and not
// finished. What a controller that has stopped leaves behind is counted for ever.
func dueReconciles() map[string]float64 {
	GinkgoHelper()
	families, err := ctrlmetrics.Registry.Gather()
	Expect(err).NotTo(HaveOccurred())
	due := map[string]float64{}
	for _, f := range families {
		var factor float64
		switch f.GetName() {
		case "workqueue_adds_total": // when a request may be worked on
			factor = 1
		case "controller_runtime_reconcile_total": // when that is done, whatever comes of it
			factor = -1
		}
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "controller" {
					due[label.GetValue()] += factor * m.GetCounter().GetValue()
				}
			}
		}
	}
	return due
}

// upToDate returns an error unless the caches have what the API server has.
func (r *running) upToDate(ctx context.Context) error {
	options, err := controllers.CacheOptions(leaseNamespace)
	if err != nil {
		return err
	}
	kinds := map[client.Object]cache.ByObject{&v1alpha1.NodeProxy{}: {}, &v1alpha1.NodeProxyRules{}: {}, &v1alpha1.ServiceProxyRules{}: {}}
	maps.Copy(kinds, options.ByObject)
	for kind, by := range kinds {
		selected := &client.ListOptions{LabelSelector: by.Label, FieldSelector: by.Field}
		for namespace, within := range by.Namespaces {
			selected = &client.ListOptions{Namespace: namespace, LabelSelector: within.LabelSelector, FieldSelector: within.FieldSelector}
		}
		stored, err := versionsOf(ctx, k8s, kind, selected)
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			continue // a spec has deleted the CRD
		}
		if err != nil {
			return err
		}
		cached, err := versionsOf(ctx, r.cache, kind)
		if err != nil {
			return err
		}
		if !maps.Equal(stored, cached) {
			return fmt.Errorf("the cache of %T holds %v, the API server %v", kind, cached, stored)
		}
	}
	return nil
}

// versionsOf returns "namespace/name" → resourceVersion of the objects of a kind.
func versionsOf(ctx context.Context, from client.Reader, kind client.Object, options ...client.ListOption) (map[string]string, error) {
	gvk, err := apiutil.GVKForObject(kind, k8s.Scheme())
	if err != nil {
		return nil, err
	}
	list, err := k8s.Scheme().New(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if err != nil {
		return nil, err
	}
	if err := from.List(ctx, list.(client.ObjectList), options...); err != nil {
		return nil, err
	}
	out := map[string]string{}
	err = meta.EachListItem(list, func(item runtime.Object) error {
		object := item.(client.Object)
		out[client.ObjectKeyFromObject(object).String()] = object.GetResourceVersion()
		return nil
	})
	return out, err
}

// statusesSeen records the status of NodeProxy from now on. The function that it returns
// gives all that were written until it is called: its own write comes by last.
func statusesSeen(ctx context.Context) func() []v1alpha1.NodeProxyStatus {
	GinkgoHelper()
	w, err := k8s.Watch(ctx, &v1alpha1.NodeProxyList{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(w.Stop)
	return func() []v1alpha1.NodeProxyStatus {
		GinkgoHelper()
		end := fmt.Sprint(time.Now().UnixNano())
		patchNodeProxy(ctx, fmt.Sprintf(`{"metadata":{"annotations":{"example.com/mark":%q}}}`, end))
		var all []v1alpha1.NodeProxyStatus
		Eventually(func() bool {
			for {
				select {
				case e := <-w.ResultChan():
					if np, ok := e.Object.(*v1alpha1.NodeProxy); ok {
						all = append(all, np.Status)
						if strings.Contains(np.Annotations["example.com/mark"], end) {
							return true
						}
					}
				default:
					return false
				}
			}
		}).Should(BeTrue())
		return all
	}
}

// touchReport changes what a node reports in a way that means nothing, which wakes who
// follows the conditions of nodes.
func touchReport(ctx context.Context, node string) {
	GinkgoHelper()
	Eventually(func() error {
		rules, err := nodeRules(ctx, node)()
		if err != nil {
			return err
		}
		meta.SetStatusCondition(&rules.Status.Conditions, metav1.Condition{
			Type: "Touched", Status: metav1.ConditionTrue, Reason: "Test", Message: fmt.Sprint(time.Now().UnixNano()),
		})
		return k8s.Status().Update(ctx, rules)
	}).Should(Succeed())
}

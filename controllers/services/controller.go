package services

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/formats"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/overrides"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// Reconciler maintains one ServiceProxyRules for every eligible Service.
type Reconciler struct {
	Client    client.Client // reads come from the cache
	Live      client.Reader
	Events    *events.Recorder
	Clock     clock.PassiveClock
	Metrics   *metrics.Metrics
	Memory    *Memory
	Formats   *formats.Formats
	Overrides *overrides.Overrides

	// Ranges returns the service ranges; false: they are not known yet.
	Ranges     func() (render.ServiceRanges, bool)
	APIServers []string // the URLs that the controller was started with
}

// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=serviceproxypolicies,verbs=list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxies,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=serviceproxyrules,verbs=list;watch;create;update;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create

// Setup adds the reconciler to a manager.
func (r *Reconciler) Setup(s watches.Setup, resume, ranges <-chan event.GenericEvent) error {
	each := handler.EnqueueRequestsFromMapFunc
	return s.Complete("service", leader.Drop(s.Leadership, r),
		watches.By(&corev1.Service{}, &handler.EnqueueRequestForObject{}),
		watches.By(&discoveryv1.EndpointSlice{}, each(r.serviceOfSlice)),
		watches.By(&v1alpha1.ServiceProxyRules{}, each(serviceOfRules)),
		watches.By(&v1alpha1.NodeProxy{}, each(r.everyService), watches.OnCreate()),
		watches.By(&v1alpha1.ServiceProxyPolicy{}, r.policyEvents()),
		watches.By(&corev1.Namespace{}, r.namespaceEvents()),
		watches.By(&corev1.Node{}, r.addressEvents(addressesOfNode)),
		watches.By(&discoveryv1.EndpointSlice{}, r.addressEvents(addressesOfServers), watches.OfKubernetes()),
		watches.By(&v1alpha1.NodeProxy{}, r.addressEvents(addressesNamed), watches.SpecChanged()),
		watches.Channel(ranges, each(r.servicesWithin)),
		watches.Channel(s.Wake, each(r.everyService)), // a new term
		watches.Channel(resume, each(r.retainingServices)))
}

// rangesUnknownRetry is how often a Service that waits for the service ranges is rendered again, in
// case nothing else triggers it.
const rangesUnknownRetry = time.Minute

// Reconcile publishes an eligible Service, and ends the rules of any other.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if on, err := objects.SwitchedOn(ctx, r.Client); err != nil || !on {
		return r.off(req.NamespacedName, err)
	}
	if err := r.begin(ctx); err != nil {
		return ctrl.Result{}, err
	}
	svc, err := objects.Find[corev1.Service](ctx, r.Client, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	stored, err := objects.Find[v1alpha1.ServiceProxyRules](ctx, r.Client, client.ObjectKey{Name: objects.RulesName(req.NamespacedName)})
	if err != nil {
		return ctrl.Result{}, err
	}
	if svc != nil && render.Eligible(svc) {
		if stored == nil {
			if on, err := objects.MayCreate(ctx, r.Client, r.Live); err != nil || !on {
				return r.off(req.NamespacedName, err)
			}
		}
		return r.publish(ctx, svc, stored)
	}
	if svc != nil {
		r.Memory.end(req.NamespacedName)
	} else {
		r.Memory.forget(req.NamespacedName)
	}
	r.Overrides.Forget(req.NamespacedName)
	if stored == nil {
		r.Memory.released(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	return r.end(ctx, req.NamespacedName, stored)
}

// off forgets a Service while nothing is rendered, unless that is not known because of an error.
func (r *Reconciler) off(key types.NamespacedName, err error) (ctrl.Result, error) {
	if err == nil {
		r.Memory.switchedOff(key)
		r.Overrides.Forget(key)
	}
	return ctrl.Result{}, err
}

// begin records which Services are older than the term.
func (r *Reconciler) begin(ctx context.Context) error {
	if r.Memory.begun() {
		return nil
	}
	var list corev1.ServiceList
	if err := r.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("list Services: %w", err)
	}
	r.Memory.begin(list.Items)
	return nil
}

// publish renders a Service and writes the result if it differs from stored.
func (r *Reconciler) publish(ctx context.Context, svc *corev1.Service, stored *v1alpha1.ServiceProxyRules) (ctrl.Result, error) {
	key := client.ObjectKeyFromObject(svc)
	if wait := r.Memory.waiting(key, stored != nil, r.Clock.Now()); wait > 0 && r.Memory.Settled(key) {
		return ctrl.Result{RequeueAfter: wait}, nil // whatever has changed
	}
	left := r.Memory.takeChange(key) // what is not written yet
	defer func() { r.Memory.note(key, left) }()
	want, again, err := r.render(ctx, svc, stored)
	if err != nil || want == nil {
		return ctrl.Result{RequeueAfter: again}, err
	}
	if want.limit != "" {
		r.notRendered(ctx, svc, want.limit, want.message, 0)
		r.Memory.inVain(key, want.load, again, r.Clock.Now())
		return ctrl.Result{RequeueAfter: again}, nil // only a change can help
	}
	defer want.report()
	pending := again > 0 // policies will change more
	if stored != nil && sameRules(stored, want.rules) {
		left = change{policies: left.policies && pending}
		r.Metrics.Skip(metrics.KindService)
		r.accept(ctx, svc)
		r.Memory.inVain(key, render.LoadOf(&stored.Spec, 0), again, r.Clock.Now())
		return ctrl.Result{RequeueAfter: again}, nil
	}
	fingerprint, bytes, err := objects.Measure(want.rules)
	if err != nil {
		return ctrl.Result{}, err
	}
	load := render.LoadOf(&want.rules.Spec, bytes)
	if stored != nil {
		load = load.Max(render.LoadOf(&stored.Spec, 0))
	}
	if bytes > v1alpha1.MaxServiceRulesBytes {
		r.notRendered(ctx, svc, tooLargeMessage, tooLargeMessage, fingerprint)
		r.Memory.pause(key, load, again, r.Clock.Now())
		return ctrl.Result{RequeueAfter: again}, nil // only a change can help
	}
	now := r.Clock.Now()
	if wait := r.Memory.retryIn(key, fingerprint, now); wait > 0 {
		r.Memory.inVain(key, load, again, now)
		return ctrl.Result{RequeueAfter: retry.Sooner(again, wait)}, nil
	}
	byTenant := !left.addresses && (!left.policies || pending)
	if wait := r.Memory.wait(key, load, stored != nil, byTenant, now); wait > 0 {
		return ctrl.Result{RequeueAfter: retry.Sooner(again, wait)}, nil
	}
	err = r.write(ctx, want.rules, stored)
	switch {
	case err == nil:
		if !left.slice.IsZero() {
			r.Metrics.WroteSlice(r.Clock.Since(left.slice))
		}
		left = change{policies: left.policies && pending}
		r.Memory.wrote(key, bytes, want.changed, now)
		r.accept(ctx, svc)
		return ctrl.Result{RequeueAfter: again}, nil
	case retry.Denied(err):
		left.addresses, left.policies = false, left.policies && pending // only tenants can correct it
		r.Memory.tried(key, bytes, now)
		r.Memory.inVain(key, load, again, now)
		message := retry.Message(err)
		return ctrl.Result{RequeueAfter: retry.Sooner(again, r.notRendered(ctx, svc, message, message, fingerprint))}, nil
	}
	return retry.IgnoreRace(err)
}

// renderedService is the result for a Service: its rules, or the limit that it exceeds and what it
// took to see that.
type renderedService struct {
	rules          *v1alpha1.ServiceProxyRules
	report         func() // reports its problems once the rules are written
	changed        bool   // the Service itself has changed since its rules were written
	limit, message string
	load           render.Load
}

// render renders a Service as policies shape it. Again is when to render it again even if nothing
// changes; 0: never. The result is nil if it cannot be rendered yet.
func (r *Reconciler) render(ctx context.Context, svc *corev1.Service, stored *v1alpha1.ServiceProxyRules) (*renderedService, time.Duration, error) {
	shaping, err := r.Overrides.Shape(ctx, svc, stored)
	if err != nil || shaping.Unknown {
		return nil, shaping.Again, err
	}
	endpointSlices, err := objects.SlicesOf(ctx, r.Client, client.ObjectKeyFromObject(svc))
	if err != nil {
		return nil, 0, err
	}
	if limit, text := render.Size(svc, endpointSlices).Excess(); limit != "" {
		return &renderedService{limit: limit, message: text}, shaping.Again, nil
	}
	format, err := r.Formats.Current(ctx)
	if err != nil {
		return nil, 0, err
	}
	around, known, err := r.cluster(ctx, svc)
	if err != nil || !known {
		return nil, retry.Sooner(shaping.Again, rangesUnknownRetry), err
	}
	start := r.Clock.Now()
	rules, problems := render.Service(svc, endpointSlices, shaping.Shape, around, format)
	r.Metrics.Rendered(metrics.KindService, r.Clock.Since(start))
	if limit, text := v1alpha1.SizeOf(&rules.Spec).Excess(); limit != "" { // because of its policies
		return &renderedService{limit: limit, message: text, load: render.LoadOf(&rules.Spec, 0)}, shaping.Again, nil
	}
	former := rules // what the Service would have with its current overrides, in the stored format
	if stored != nil && (!shaping.Retained || stored.Spec.FormatVersion != format) {
		shape := shaping.Former
		if shaping.Retained {
			shape = shaping.Shape
		}
		former, _ = render.Service(svc, endpointSlices, shape, around, stored.Spec.FormatVersion)
	}
	changed := changedItself(stored, former, shaping)
	if shaping.Annotation != "" {
		key := client.ObjectKeyFromObject(svc)
		if changed || !shaping.Retained && r.Memory.changedLately(key, start) {
			if shaping.Annotation, err = r.Overrides.ChangedToo(ctx, key, shaping.Annotation); err != nil {
				return nil, 0, err
			}
		}
		metav1.SetMetaDataAnnotation(&rules.ObjectMeta, v1alpha1.AnnotationOverrides, shaping.Annotation)
	}
	report := func() {
		r.reportProblems(ctx, svc, eventEndpointsSkipped, problemText(problems))
		r.reportProblems(ctx, svc, eventAddressesSkipped, skippedText(rules.Spec.SkippedAddresses))
		ranges := ""
		if o := shaping.Shape.Overrides; o == nil || o.LoadBalancerSourceRanges == nil { // else the policy's status reports it
			ranges = note("Source ranges that cannot be used: ", strings.Join(render.SourceRangeProblems(svc), "; "), ". Correct spec.loadBalancerSourceRanges")
		}
		r.reportProblems(ctx, svc, eventSourceRangesUnusable, ranges)
	}
	return &renderedService{rules: rules, report: report, changed: changed}, shaping.Again, nil
}

// cluster returns what the cluster has at the addresses of a Service; false: not all of it is known
// yet.
func (r *Reconciler) cluster(ctx context.Context, svc *corev1.Service) (out render.Cluster, known bool, err error) {
	if len(svc.Spec.ExternalIPs)+len(svc.Status.LoadBalancer.Ingress) == 0 {
		return out, true, nil
	}
	if out.Ranges, known = r.Ranges(); !known {
		return out, false, nil
	}
	ofKubernetes, err := objects.APIServerSlices(ctx, r.Client)
	if err != nil {
		return out, false, err
	}
	np, err := objects.NodeProxy(ctx, r.Client)
	if err != nil {
		return out, false, err
	}
	out.APIServers = render.APIServers(ofKubernetes, np, r.APIServers...)
	nodes := sets.Set[netip.Addr]{}
	for _, a := range render.OutsideIPs(svc) {
		var list corev1.NodeList
		if err := r.Client.List(ctx, &list, client.MatchingFields{objects.IndexNodesByAddress: a.String()}); err != nil {
			return out, false, fmt.Errorf("list Nodes by address: %w", err)
		}
		if len(list.Items) > 0 {
			nodes.Insert(a)
		}
	}
	out.OfNode = nodes.Has
	return out, true, nil
}

// changedItself reports whether the Service itself, or its endpoints, have changed since its rules
// were written. Former are the rules that it would have with its current overrides.
func changedItself(stored, former *v1alpha1.ServiceProxyRules, shaping overrides.Shaping) bool {
	if stored == nil || shaping.Retained && shaping.Annotation == "" {
		return true // if anything is written at all
	}
	return !equality.Semantic.DeepEqual(stored.Spec, former.Spec)
}

// sameRules reports whether a write would change nothing that matters. The time of the last change
// alone is no reason to write.
func sameRules(stored, want *v1alpha1.ServiceProxyRules) bool {
	return stored.Annotations[v1alpha1.AnnotationOverrides] == want.Annotations[v1alpha1.AnnotationOverrides] &&
		equality.Semantic.DeepEqual(stored.Spec, want.Spec)
}

// write creates or updates the rules. It preserves other labels and annotations.
func (r *Reconciler) write(ctx context.Context, want, stored *v1alpha1.ServiceProxyRules) error {
	logger := log.FromContext(ctx).V(2)
	if stored == nil {
		objects.Stamp(&want.ObjectMeta, r.Clock.Now())
		if err := r.Client.Create(ctx, want); err != nil {
			return fmt.Errorf("%w ServiceProxyRules %s: %w", retry.ErrCreate, want.Name, err)
		}
		r.Metrics.Wrote(metrics.KindService, metrics.OpCreate)
		logger.Info("Created rules", "serviceProxyRules", klog.KObj(want))
		return nil
	}
	next := &v1alpha1.ServiceProxyRules{ObjectMeta: *stored.ObjectMeta.DeepCopy(), Spec: want.Spec}
	delete(next.Annotations, v1alpha1.AnnotationLastChangeTriggerTime)
	delete(next.Annotations, v1alpha1.AnnotationOverrides)
	next.Annotations = labels.Merge(next.Annotations, want.Annotations)
	objects.Stamp(&next.ObjectMeta, r.Clock.Now())
	if err := r.Client.Update(ctx, next); err != nil {
		return fmt.Errorf("update ServiceProxyRules %s: %w", want.Name, err)
	}
	r.Metrics.Wrote(metrics.KindService, metrics.OpUpdate)
	logger.Info("Updated rules", "serviceProxyRules", klog.KObj(next))
	return nil
}

// end marks rules as released and deletes them at once. The cache may be stale, and agents remove
// released rules, so the API server itself must confirm that the Service has ended. The
// preconditions preserve any change made meanwhile.
func (r *Reconciler) end(ctx context.Context, key types.NamespacedName, stored *v1alpha1.ServiceProxyRules) (ctrl.Result, error) {
	ended, err := r.endConfirmed(ctx, key)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !ended {
		return ctrl.Result{RequeueAfter: retry.Soon}, nil // the watch will bring the Service
	}
	if !stored.Spec.Released {
		stored = stored.DeepCopy()
		stored.Spec.Released = true
		objects.Stamp(&stored.ObjectMeta, r.Clock.Now())
		if err := r.Client.Update(ctx, stored); err != nil {
			return retry.IgnoreRace(fmt.Errorf("release ServiceProxyRules %s: %w", stored.Name, err))
		}
		r.Metrics.Wrote(metrics.KindService, metrics.OpRelease)
	}
	r.Memory.released(key)
	if stored.DeletionTimestamp != nil {
		return ctrl.Result{}, nil // waits for another finalizer
	}
	err = r.Client.Delete(ctx, stored, client.Preconditions{UID: &stored.UID, ResourceVersion: &stored.ResourceVersion})
	if err != nil {
		return retry.IgnoreRace(fmt.Errorf("delete ServiceProxyRules %s: %w", stored.Name, err))
	}
	r.Metrics.Wrote(metrics.KindService, metrics.OpDelete)
	log.FromContext(ctx).V(2).Info("Released and deleted rules", "serviceProxyRules", klog.KObj(stored))
	return ctrl.Result{}, nil
}

// endConfirmed asks the API server whether a Service is deleted or not eligible.
func (r *Reconciler) endConfirmed(ctx context.Context, key types.NamespacedName) (bool, error) {
	if key.Namespace == "" { // stands for an object that no Service has
		return true, nil
	}
	svc, err := objects.Find[corev1.Service](ctx, r.Live, key)
	if err != nil {
		return false, fmt.Errorf("confirm that the Service has ended: %w", err)
	}
	return svc == nil || !render.Eligible(svc), nil
}

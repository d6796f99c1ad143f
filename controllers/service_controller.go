package controllers

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// ServiceReconciler keeps one ServiceProxyRules for every eligible Service.
type ServiceReconciler struct {
	leadership Leadership
	client     client.Client // reads come from the cache
	live       client.Reader
	events     *events
	clock      clock.PassiveClock
	metrics    *metrics
	memory     *serviceMemory
	formats    *formats
	overrides  *overrides
}

// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=serviceproxypolicies,verbs=list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxies,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=serviceproxyrules,verbs=list;watch;create;update;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create

func (r *ServiceReconciler) setup(mgr ctrl.Manager, o controller.Options, wake, resume <-chan event.GenericEvent) error {
	return builder.ControllerManagedBy(mgr).
		Named("service").
		Watches(&corev1.Service{}, &handler.EnqueueRequestForObject{}).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(r.noteSlice)).
		Watches(&v1alpha1.ServiceProxyRules{}, handler.EnqueueRequestsFromMapFunc(serviceOfRules)).
		Watches(&v1alpha1.NodeProxy{}, handler.EnqueueRequestsFromMapFunc(r.everyService),
			builder.WithPredicates(onCreate())).
		Watches(&v1alpha1.ServiceProxyPolicy{}, r.policyEvents()).
		Watches(&corev1.Namespace{}, r.namespaceEvents()).
		WatchesRawSource(source.Channel(wake, handler.EnqueueRequestsFromMapFunc(r.everyService))). // it leads now
		WatchesRawSource(source.Channel(resume, handler.EnqueueRequestsFromMapFunc(r.keptServices))).
		WithOptions(o).
		Complete(leading(r.leadership, r))
}

// noteSlice is serviceOfSlice, and notes when it was.
func (r *ServiceReconciler) noteSlice(ctx context.Context, o client.Object) []reconcile.Request {
	requests := serviceOfSlice(ctx, o)
	for _, request := range requests {
		r.memory.sliceChanged(request.NamespacedName, r.clock.Now())
	}
	return requests
}

func serviceOfSlice(_ context.Context, o client.Object) []reconcile.Request {
	if svc, ok := render.ServiceOf(o.(*discoveryv1.EndpointSlice)); ok {
		return []reconcile.Request{{NamespacedName: svc}}
	}
	return nil
}

// serviceOfRules goes by the name of the rules, because labels can be edited.
// A namespace has no dots. A name without any dot stands for itself: nothing
// renders such an object, so it will be removed.
func serviceOfRules(_ context.Context, o client.Object) []reconcile.Request {
	namespace, name, found := strings.Cut(o.GetName(), ".")
	if !found {
		namespace, name = "", o.GetName()
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}}
}

// rulesName is the inverse of serviceOfRules.
func rulesName(svc types.NamespacedName) string {
	if svc.Namespace == "" {
		return svc.Name
	}
	return v1alpha1.ServiceProxyRulesName(svc.Namespace, svc.Name)
}

// everyService is for the moment when nodeproxy is switched on.
func (r *ServiceReconciler) everyService(ctx context.Context, _ client.Object) []reconcile.Request {
	var list corev1.ServiceList
	if err := r.client.List(ctx, &list); err != nil {
		log.FromContext(ctx).Error(err, "Services could not be listed after NodeProxy was created")
		return nil
	}
	out := make([]reconcile.Request, len(list.Items))
	for i := range list.Items {
		out[i].NamespacedName = client.ObjectKeyFromObject(&list.Items[i])
	}
	return out
}

// Reconcile publishes an eligible Service, and ends the rules of any other.
func (r *ServiceReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if on, err := switchedOn(ctx, r.client); err != nil || !on {
		return ctrl.Result{}, err
	}
	svc := &corev1.Service{}
	exists, err := get(ctx, r.client, req.NamespacedName, svc)
	if err != nil {
		return ctrl.Result{}, err
	}
	stored := &v1alpha1.ServiceProxyRules{}
	found, err := get(ctx, r.client, client.ObjectKey{Name: rulesName(req.NamespacedName)}, stored)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !found {
		stored = nil
	}
	if exists && render.Eligible(svc) {
		if stored == nil {
			if on, err := mayCreate(ctx, r.client, r.live); err != nil || !on {
				return ctrl.Result{}, err
			}
		}
		return r.publish(ctx, svc, stored)
	}
	r.memory.forget(req.NamespacedName)
	r.overrides.forget(req.NamespacedName)
	if stored == nil {
		return ctrl.Result{}, nil
	}
	return r.end(ctx, req.NamespacedName, stored)
}

// publish renders a Service and writes the result if it differs from stored.
func (r *ServiceReconciler) publish(ctx context.Context, svc *corev1.Service, stored *v1alpha1.ServiceProxyRules) (ctrl.Result, error) {
	key := client.ObjectKeyFromObject(svc)
	changed := r.memory.takeChange(key)
	upToDate := false
	defer func() {
		if !upToDate {
			r.memory.keepChange(key, changed)
		}
	}()
	want, again, err := r.render(ctx, svc, stored)
	if err != nil || want == nil {
		return ctrl.Result{RequeueAfter: again}, err
	}
	if want.limit != "" {
		r.refuse(ctx, svc, want.limit, want.refused, 0)
		return ctrl.Result{RequeueAfter: again}, nil // only a change can help
	}
	defer want.say()

	size := want.rules.Spec.EndpointCount
	if stored != nil {
		if sameRules(stored, want.rules) {
			upToDate = true
			r.metrics.skip(kindService)
			r.memory.accepted(key)
			return ctrl.Result{RequeueAfter: again}, nil
		}
		size = max(size, stored.Spec.EndpointCount)
	}
	now := r.clock.Now()
	if wait := r.memory.wait(key, size, now); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	fingerprint, tooLarge, err := measure(want.rules)
	if err != nil {
		return ctrl.Result{}, err
	}
	if tooLarge {
		r.refuse(ctx, svc, tooLargeMessage, tooLargeMessage, fingerprint)
		return ctrl.Result{RequeueAfter: again}, nil // only a change can help
	}
	if wait := r.memory.retryIn(key, fingerprint, now); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	err = r.write(ctx, want.rules, stored)
	switch {
	case err == nil:
		upToDate = true
		r.memory.wrote(key, now)
		if !changed.IsZero() {
			r.metrics.toWrite.Observe(r.clock.Since(changed).Seconds())
		}
		return ctrl.Result{RequeueAfter: again}, nil
	case refusedByAPI(err):
		message := refusalMessage(err)
		return ctrl.Result{RequeueAfter: r.refuse(ctx, svc, message, message, fingerprint)}, nil
	}
	return ignoreRace(err)
}

// renderedService are rules, and what there is to say of them once they are written; or why
// there are none.
type renderedService struct {
	rules *v1alpha1.ServiceProxyRules
	say   func()
	// limit is the one that the Service is over; refused says so.
	limit, refused string
}

// render renders a Service as policies shape it, and tells when to do so again though
// nothing has changed; 0: not. It returns nil where that cannot be done yet.
func (r *ServiceReconciler) render(ctx context.Context, svc *corev1.Service, stored *v1alpha1.ServiceProxyRules) (*renderedService, time.Duration, error) {
	shaping, err := r.overrides.shape(ctx, svc, stored)
	if err != nil || shaping.unknown {
		return nil, shaping.again, err
	}
	endpointSlices, err := slicesOf(ctx, r.client, client.ObjectKeyFromObject(svc))
	if err != nil {
		return nil, 0, err
	}
	if limit, text := render.Size(svc, endpointSlices).Excess(); limit != "" {
		return &renderedService{limit: limit, refused: text}, shaping.again, nil
	}
	format, err := r.formats.current(ctx)
	if err != nil {
		return nil, 0, err
	}
	start := r.clock.Now()
	rules, problems := render.Service(svc, endpointSlices, shaping.shape, format)
	r.metrics.rendered(kindService, r.clock.Since(start))
	if limit, text := v1alpha1.SizeOf(&rules.Spec).Excess(); limit != "" { // by what policies add
		return &renderedService{limit: limit, refused: text}, shaping.again, nil
	}
	if shaping.annotation != "" {
		rules.Annotations = merged(rules.Annotations, map[string]string{v1alpha1.AnnotationOverrides: shaping.annotation})
	}
	say := func() {
		r.sayProblems(ctx, svc, eventEndpointsSkipped, problemText(problems))
		ranges := ""
		if o := shaping.shape.Overrides; o == nil || o.LoadBalancerSourceRanges == nil { // else the policy tells
			ranges = rangeText(render.SourceRangeProblems(svc))
		}
		r.sayProblems(ctx, svc, eventSourceRangesUnusable, ranges)
	}
	return &renderedService{rules: rules, say: say}, shaping.again, nil
}

// sameRules tells whether a write would change nothing that matters. The time
// of the last change is no reason to write by itself.
func sameRules(stored, want *v1alpha1.ServiceProxyRules) bool {
	for name, value := range want.Labels {
		if stored.Labels[name] != value {
			return false
		}
	}
	return stored.Annotations[v1alpha1.AnnotationOverrides] == want.Annotations[v1alpha1.AnnotationOverrides] &&
		equality.Semantic.DeepEqual(stored.Spec, want.Spec)
}

// write creates or updates the rules; labels and annotations of others stay.
func (r *ServiceReconciler) write(ctx context.Context, want, stored *v1alpha1.ServiceProxyRules) error {
	logger := log.FromContext(ctx).V(2)
	if stored == nil {
		if err := r.client.Create(ctx, want); err != nil {
			return fmt.Errorf("%w ServiceProxyRules %s: %w", errCreate, want.Name, err)
		}
		r.metrics.wrote(kindService, opCreate)
		logger.Info("Created rules", "serviceProxyRules", klog.KObj(want))
		return nil
	}
	next := &v1alpha1.ServiceProxyRules{ObjectMeta: *stored.ObjectMeta.DeepCopy(), Spec: want.Spec}
	next.Labels = merged(next.Labels, want.Labels)
	delete(next.Annotations, v1alpha1.AnnotationLastChangeTriggerTime)
	delete(next.Annotations, v1alpha1.AnnotationOverrides)
	next.Annotations = merged(next.Annotations, want.Annotations)
	if err := r.client.Update(ctx, next); err != nil {
		return fmt.Errorf("update ServiceProxyRules %s: %w", want.Name, err)
	}
	r.metrics.wrote(kindService, opUpdate)
	logger.Info("Updated rules", "serviceProxyRules", klog.KObj(next))
	return nil
}

func merged(base, over map[string]string) map[string]string {
	if base == nil {
		return over
	}
	maps.Copy(base, over)
	return base
}

// end marks rules as released and deletes them at once. The cache may be
// behind or wrong, and agents remove what is released, so the API server itself
// must say that the Service has ended. The preconditions keep a change made in
// between, by whomever, from being lost.
func (r *ServiceReconciler) end(ctx context.Context, key types.NamespacedName, stored *v1alpha1.ServiceProxyRules) (ctrl.Result, error) {
	ended, err := r.endConfirmed(ctx, key)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !ended {
		return ctrl.Result{RequeueAfter: retrySoon}, nil // the watch will bring the Service
	}
	if !stored.Spec.Released {
		stored = stored.DeepCopy()
		stored.Spec.Released = true
		if err := r.client.Update(ctx, stored); err != nil {
			return ignoreRace(fmt.Errorf("release ServiceProxyRules %s: %w", stored.Name, err))
		}
		r.metrics.wrote(kindService, opRelease)
	}
	if stored.DeletionTimestamp != nil {
		return ctrl.Result{}, nil // waits for somebody's finalizer
	}
	err = r.client.Delete(ctx, stored, client.Preconditions{UID: &stored.UID, ResourceVersion: &stored.ResourceVersion})
	if err != nil {
		return ignoreRace(fmt.Errorf("delete ServiceProxyRules %s: %w", stored.Name, err))
	}
	r.metrics.wrote(kindService, opDelete)
	log.FromContext(ctx).V(2).Info("Released and deleted rules", "serviceProxyRules", klog.KObj(stored))
	return ctrl.Result{}, nil
}

// endConfirmed asks the API server whether a Service is gone or not eligible.
func (r *ServiceReconciler) endConfirmed(ctx context.Context, key types.NamespacedName) (bool, error) {
	if key.Namespace == "" { // stands for an object that no Service has
		return true, nil
	}
	svc := &corev1.Service{}
	exists, err := get(ctx, r.live, key, svc)
	if err != nil {
		return false, fmt.Errorf("confirm that the Service has ended: %w", err)
	}
	return !exists || !render.Eligible(svc), nil
}

// sayProblems emits one event for each distinct set of problems of a Service.
func (r *ServiceReconciler) sayProblems(ctx context.Context, svc *corev1.Service, reason, text string) {
	key := client.ObjectKeyFromObject(svc)
	if r.memory.newProblems(key, reason, text) && !r.events.warn(ctx, svc, reason, actionRender, text) {
		r.memory.newProblems(key, reason, "") // to be said with the next change
	}
}

// rangeText says what is wrong with source ranges; empty when nothing is.
func rangeText(problems []string) string {
	if len(problems) == 0 {
		return ""
	}
	return truncated("Source ranges that cannot be used: "+strings.Join(problems, "; ")+". Correct spec.loadBalancerSourceRanges", maxEventNote)
}

// problemText names the first few problems; empty when there are none.
func problemText(problems []render.Problem) string {
	if len(problems) == 0 {
		return ""
	}
	const named = 3
	texts := make([]string, 0, named+1)
	for i, p := range problems {
		if i == named {
			texts = append(texts, fmt.Sprintf("and %d more", len(problems)-named))
			break
		}
		texts = append(texts, p.String())
	}
	return truncated("Left out because they cannot be used (all other endpoints are programmed): "+strings.Join(texts, "; "), maxEventNote)
}

// refuse notes and says that a Service's rules cannot be written; what is
// stored of it stays in force. It returns when to try again.
func (r *ServiceReconciler) refuse(ctx context.Context, svc *corev1.Service, reason, message string, fingerprint uint64) time.Duration {
	say, retry := r.memory.refuse(client.ObjectKeyFromObject(svc), reason, message, fingerprint, r.clock.Now())
	if say {
		log.FromContext(ctx).Info("Service refused", "service", klog.KObj(svc), "why", message)
		r.events.warn(ctx, svc, eventServiceRefused, actionWrite,
			"Its rules cannot be stored, so nodes keep what they have of it and miss later changes: "+message)
	}
	return retry
}

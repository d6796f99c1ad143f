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

	surroundings *surroundings
}

// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=serviceproxypolicies,verbs=list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxies,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=serviceproxyrules,verbs=list;watch;create;update;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create

func (r *ServiceReconciler) setup(mgr ctrl.Manager, o controller.Options, wake, resume, ranges <-chan event.GenericEvent) error {
	return builder.ControllerManagedBy(mgr).
		Named("service").
		Watches(&corev1.Service{}, &handler.EnqueueRequestForObject{}).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(r.noteSlice)).
		Watches(&v1alpha1.ServiceProxyRules{}, handler.EnqueueRequestsFromMapFunc(ownerOfRules)).
		Watches(&v1alpha1.NodeProxy{}, handler.EnqueueRequestsFromMapFunc(r.everyService),
			builder.WithPredicates(onCreate())).
		Watches(&v1alpha1.ServiceProxyPolicy{}, r.policyEvents()).
		Watches(&corev1.Namespace{}, r.namespaceEvents()).
		Watches(&corev1.Node{}, r.addressEvents(addressesOfNode)).
		Watches(&discoveryv1.EndpointSlice{}, r.addressEvents(addressesOfServers), builder.WithPredicates(ofKubernetes())).
		Watches(&v1alpha1.NodeProxy{}, r.addressEvents(addressesNamed), builder.WithPredicates(specChanged())).
		WatchesRawSource(source.Channel(ranges, handler.EnqueueRequestsFromMapFunc(r.servicesWithin))).
		WatchesRawSource(source.Channel(wake, handler.EnqueueRequestsFromMapFunc(r.everyService))). // it leads now
		WatchesRawSource(source.Channel(resume, handler.EnqueueRequestsFromMapFunc(r.keptServices))).
		WithOptions(o).
		Complete(leading(r.leadership, r))
}

// noteSlice is serviceOfSlice, and notes when it was.
func (r *ServiceReconciler) noteSlice(ctx context.Context, o client.Object) []reconcile.Request {
	requests := serviceOfSlice(ctx, o)
	for _, request := range requests {
		r.memory.note(request.NamespacedName, change{slice: r.clock.Now()})
	}
	return requests
}

func serviceOfSlice(_ context.Context, o client.Object) []reconcile.Request {
	if svc, ok := render.ServiceOf(o.(*discoveryv1.EndpointSlice)); ok {
		return []reconcile.Request{{NamespacedName: svc}}
	}
	return nil
}

func ownerOfRules(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: serviceOfRules(o)}}
}

// serviceOfRules goes by the name of the rules, because labels can be edited.
// A namespace has no dots. A name without any dot stands for itself: nothing
// renders such an object, so it will be removed.
func serviceOfRules(rules client.Object) types.NamespacedName {
	namespace, name, found := strings.Cut(rules.GetName(), ".")
	if !found {
		return types.NamespacedName{Name: rules.GetName()}
	}
	return types.NamespacedName{Namespace: namespace, Name: name}
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
	if err := r.begin(ctx); err != nil {
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
	if exists {
		r.memory.end(req.NamespacedName)
	} else {
		r.memory.forget(req.NamespacedName)
	}
	r.overrides.forget(req.NamespacedName)
	if stored == nil {
		r.memory.released(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	return r.end(ctx, req.NamespacedName, stored)
}

// begin has it remembered which Services are older than the term.
func (r *ServiceReconciler) begin(ctx context.Context) error {
	if r.memory.begun() {
		return nil
	}
	var list corev1.ServiceList
	if err := r.client.List(ctx, &list); err != nil {
		return fmt.Errorf("list Services: %w", err)
	}
	r.memory.begin(list.Items)
	return nil
}

// publish renders a Service and writes the result if it differs from stored.
func (r *ServiceReconciler) publish(ctx context.Context, svc *corev1.Service, stored *v1alpha1.ServiceProxyRules) (ctrl.Result, error) {
	key := client.ObjectKeyFromObject(svc)
	if wait := r.memory.waiting(key, stored != nil, r.clock.Now()); wait > 0 && r.memory.settled(key) {
		return ctrl.Result{RequeueAfter: wait}, nil // whatever it has become
	}
	left := r.memory.takeChange(key) // to be written
	defer func() { r.memory.note(key, left) }()
	want, again, err := r.render(ctx, svc, stored)
	if err != nil || want == nil {
		return ctrl.Result{RequeueAfter: again}, err
	}
	if want.limit != "" {
		r.refuse(ctx, svc, want.limit, want.refused, 0)
		return ctrl.Result{RequeueAfter: again}, nil // only a change can help
	}
	defer want.say()
	pending := again > 0 // policies will change more

	if stored != nil {
		if sameRules(stored, want.rules) {
			left = change{policies: left.policies && pending}
			r.metrics.skip(kindService)
			r.accept(ctx, svc)
			return ctrl.Result{RequeueAfter: again}, nil
		}
	}
	fingerprint, bytes, err := measure(want.rules)
	if err != nil {
		return ctrl.Result{}, err
	}
	load := render.LoadOf(&want.rules.Spec, bytes)
	if stored != nil {
		load = load.Max(render.LoadOf(&stored.Spec, 0))
	}
	if bytes > maxObjectBytes {
		r.refuse(ctx, svc, tooLargeMessage, tooLargeMessage, fingerprint)
		r.memory.pause(key, load, r.clock.Now())
		return ctrl.Result{RequeueAfter: again}, nil // only a change can help
	}
	now := r.clock.Now()
	if wait := r.memory.retryIn(key, fingerprint, now); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	byTenant := !left.addresses && (!left.policies || pending)
	if wait := r.memory.wait(key, load, stored != nil, byTenant, now); wait > 0 {
		return ctrl.Result{RequeueAfter: sooner(again, wait)}, nil
	}
	err = r.write(ctx, want.rules, stored)
	switch {
	case err == nil:
		if !left.slice.IsZero() {
			r.metrics.wroteSlice(r.clock.Since(left.slice))
		}
		left = change{policies: left.policies && pending}
		r.memory.wrote(key, bytes, want.changed, now)
		r.accept(ctx, svc)
		return ctrl.Result{RequeueAfter: again}, nil
	case refusedByAPI(err):
		left.addresses, left.policies = false, left.policies && pending // what tenants do about it is theirs
		r.memory.tried(key, bytes, now)
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
	// changed: the Service itself has changed since its rules were written.
	changed bool
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
	around, known, err := r.surroundings.of(ctx, svc)
	if err != nil || !known {
		return nil, sooner(shaping.again, rangesUnknownRetry), err
	}
	start := r.clock.Now()
	rules, problems := render.Service(svc, endpointSlices, shaping.shape, around, format)
	r.metrics.rendered(kindService, r.clock.Since(start))
	if limit, text := v1alpha1.SizeOf(&rules.Spec).Excess(); limit != "" { // by what policies add
		return &renderedService{limit: limit, refused: text}, shaping.again, nil
	}
	former := rules // as the Service would be with what it has of its policies
	if !shaping.kept && stored != nil {
		former, _ = render.Service(svc, endpointSlices, shaping.former, around, format)
	}
	changed := changedItself(stored, former, shaping)
	if shaping.annotation != "" {
		key := client.ObjectKeyFromObject(svc)
		if changed || !shaping.kept && r.memory.changedLately(key, start) {
			if shaping.annotation, err = r.overrides.changedToo(ctx, key, shaping.annotation); err != nil {
				return nil, 0, err
			}
		}
		rules.Annotations = merged(rules.Annotations, map[string]string{v1alpha1.AnnotationOverrides: shaping.annotation})
	}
	say := func() {
		r.sayProblems(ctx, svc, eventEndpointsSkipped, problemText(problems))
		r.sayProblems(ctx, svc, eventAddressesSkipped, skippedText(rules.Spec.SkippedAddresses))
		ranges := ""
		if o := shaping.shape.Overrides; o == nil || o.LoadBalancerSourceRanges == nil { // else the policy tells
			ranges = rangeText(render.SourceRangeProblems(svc))
		}
		r.sayProblems(ctx, svc, eventSourceRangesUnusable, ranges)
	}
	return &renderedService{rules: rules, say: say, changed: changed}, shaping.again, nil
}

// changedItself reports whether a Service itself, or its endpoints, are not as they were
// when its rules were written. Former are rules with what it had of its policies then.
func changedItself(stored, former *v1alpha1.ServiceProxyRules, shaping shaping) bool {
	if stored == nil || shaping.kept && shaping.annotation == "" {
		return true // if anything is written at all
	}
	now := former.Spec
	now.FormatVersion = stored.Spec.FormatVersion
	return !equality.Semantic.DeepEqual(stored.Spec, now)
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
	r.memory.released(key)
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

// sayProblems says what is wrong with a Service for a reason, if that is new.
func (r *ServiceReconciler) sayProblems(ctx context.Context, svc *corev1.Service, reason, text string) {
	key := client.ObjectKeyFromObject(svc)
	if !r.memory.newProblems(key, reason, text) && text != "" {
		return
	}
	if !r.events.warn(ctx, svc, reason, actionRender, text) {
		r.memory.unsay(key, reason)
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
	return truncated("Left out because they cannot be used (all other endpoints are programmed): "+firstOf(problems, render.Problem.String), maxEventNote)
}

// skippedText names the first few addresses that are not programmed; empty when all are.
func skippedText(addresses []v1alpha1.SkippedAddress) string {
	if len(addresses) == 0 {
		return ""
	}
	one := func(a v1alpha1.SkippedAddress) string { return a.Address + " " + a.Reason }
	return truncated("Addresses that no Service may have are not programmed (all others are): "+firstOf(addresses, one)+
		". Take them out of spec.externalIPs, or have what makes load balancers give out others", maxEventNote)
}

// firstOf lists the first few of many.
func firstOf[T any](all []T, text func(T) string) string {
	const named = 3
	texts := make([]string, 0, named+1)
	for i, one := range all {
		if i == named {
			texts = append(texts, fmt.Sprintf("and %d more", len(all)-named))
			break
		}
		texts = append(texts, text(one))
	}
	return strings.Join(texts, "; ")
}

// accept notes that nothing of a Service is refused (any more).
func (r *ServiceReconciler) accept(ctx context.Context, svc *corev1.Service) {
	r.memory.accepted(client.ObjectKeyFromObject(svc))
	r.events.warn(ctx, svc, eventServiceRefused, actionWrite, "")
}

// refuse notes and says that a Service's rules cannot be written; what is
// stored of it stays in force. It returns when to try again.
func (r *ServiceReconciler) refuse(ctx context.Context, svc *corev1.Service, reason, message string, fingerprint uint64) time.Duration {
	key := client.ObjectKeyFromObject(svc)
	say, retry := r.memory.refuse(key, reason, message, fingerprint, r.clock.Now())
	if say && !r.events.warn(ctx, svc, eventServiceRefused, actionWrite,
		"Its rules cannot be stored, so nodes keep what they have of it and miss later changes: "+message) {
		r.memory.unsay(key, eventServiceRefused)
	}
	return retry
}

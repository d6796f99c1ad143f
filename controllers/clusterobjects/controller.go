package clusterobjects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nodeproxy-io/nodeproxy/controllers/admission"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// The event about an object that cannot be maintained.
const (
	eventClusterObjectDenied = "ClusterObjectDenied"
	actionApply              = "Apply"
)

// errNoPolicies is why there are no policies on an old API server.
var errNoPolicies = errors.New("the API server does not serve ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1, which Kubernetes has since 1.30, so their limits are not enforced. The controller creates them once it does")

// Reconciler maintains the admission policies and the labels of its namespace, for installers that
// cannot install them. It does so with or without a NodeProxy: the policies also apply to what
// agents and users write. It deletes nothing; the namespace owns the policies, and they are deleted
// with it. It runs once at a time.
type Reconciler struct {
	Leadership leader.Leadership
	Client     client.Client // reads come from the cache
	policies   *policyWatch
	Events     *events.Recorder
	Clock      clock.PassiveClock
	Metrics    *metrics.Metrics
	Namespace  string

	applied     map[string]objects.Written // by kind and name
	lastApplied map[string]time.Time
}

// Setup adds the reconciler to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager, o controller.Options, wake <-chan event.GenericEvent, again func()) error {
	r.applied, r.lastApplied = map[string]objects.Written{}, map[string]time.Time{}
	var err error
	if r.policies, err = newPolicyWatch(mgr, r.Clock, again); err != nil {
		return err
	}
	only := watches.OnlyNodeProxy()
	own := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == r.Namespace })
	return builder.ControllerManagedBy(mgr).
		Named("clusterobjects").
		Watches(&corev1.Namespace{}, only, builder.WithPredicates(own)).
		WatchesRawSource(source.Channel(wake, only)). // a new term, or changed policies
		WithOptions(o).
		Complete(leader.Guard(r.Leadership, r))
}

// managedObject is a policy or a binding.
type managedObject struct {
	kind, name string
	want       runtime.ApplyConfiguration
	spec       any                  // of want
	empty      func() client.Object // to read into
}

// Reconcile applies what differs.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	namespace := &corev1.Namespace{}
	found, err := objects.Get(ctx, r.Client, client.ObjectKey{Name: r.Namespace}, namespace)
	if err != nil || !found || namespace.DeletionTimestamp != nil {
		return ctrl.Result{}, err
	}
	owner := admission.Owner{Name: namespace.Name, UID: namespace.UID}
	again, err := r.restoreLabels(ctx, namespace, owner)
	errs := []error{err}
	synced, failures := r.policies.state()
	for _, failure := range failures {
		r.report(ctx, owner, failure)
		again = retry.Sooner(again, retry.DeniedPause)
	}
	if !synced {
		return ctrl.Result{RequeueAfter: again}, err
	}
	objects, err := managedObjects(owner)
	if err != nil {
		return ctrl.Result{}, err
	}
	for _, o := range objects {
		next, err := r.keep(ctx, o, owner)
		again, errs = retry.Sooner(again, next), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

func managedObjects(owner admission.Owner) ([]managedObject, error) {
	objects, err := admission.Read(owner)
	if err != nil {
		return nil, err
	}
	var out []managedObject
	for _, p := range objects.Policies {
		out = append(out, managedObject{metrics.KindAdmissionPolicy, *p.Name, p, p.Spec, func() client.Object { return &admissionv1.ValidatingAdmissionPolicy{} }})
	}
	for _, b := range objects.Bindings {
		out = append(out, managedObject{metrics.KindAdmissionBinding, *b.Name, b, b.Spec, func() client.Object { return &admissionv1.ValidatingAdmissionPolicyBinding{} }})
	}
	return out, nil
}

// restoreLabels restores the labels of the namespace that agents need. again is when to check next; 0:
// when something changes.
func (r *Reconciler) restoreLabels(ctx context.Context, namespace *corev1.Namespace, owner admission.Owner) (again time.Duration, err error) {
	if labels.SelectorFromSet(admission.Labels()).Matches(labels.Set(namespace.Labels)) {
		return 0, nil
	}
	if wait := r.pause(metrics.KindNamespace); wait > 0 {
		return wait, nil
	}
	if err := r.Client.Apply(ctx, admission.Namespace(owner), objects.FieldOwner, client.ForceOwnership); err != nil {
		return r.notApplied(ctx, owner, metrics.KindNamespace, owner.Name, err)
	}
	r.Metrics.Wrote(metrics.KindNamespace, metrics.OpApply)
	log.FromContext(ctx).Info("Applied the pod security labels of the namespace", "namespace", owner.Name)
	return 0, nil
}

// keep applies a policy or binding if it differs.
func (r *Reconciler) keep(ctx context.Context, o managedObject, owner admission.Owner) (again time.Duration, err error) {
	stored := o.empty()
	found, err := objects.Get(ctx, r.policies.cache, client.ObjectKey{Name: o.name}, stored)
	if err != nil {
		return 0, err
	}
	if found && stored.GetDeletionTimestamp() != nil {
		return 0, nil // its end will be seen
	}
	desired, err := objects.Fingerprint(o.want)
	if err != nil {
		return 0, err
	}
	id := o.kind + "/" + o.name
	if found {
		now, err := admissionFingerprint(stored)
		if err != nil {
			return 0, err
		}
		if r.applied[id] == (objects.Written{Desired: desired, Stored: now}) {
			r.Metrics.Skip(o.kind)
			return 0, nil
		}
	}
	if wait := r.pause(id); wait > 0 {
		return wait, nil
	}
	delete(r.applied, id)
	stored, err = r.write(ctx, o)
	if err != nil {
		return r.notApplied(ctx, owner, o.kind, o.name, err)
	}
	now, err := admissionFingerprint(stored)
	if err != nil {
		return 0, err
	}
	r.applied[id] = objects.Written{Desired: desired, Stored: now}
	r.Metrics.Wrote(o.kind, metrics.OpApply)
	log.FromContext(ctx).Info("Applied an admission policy or its binding", "kind", o.kind, "name", o.name, "generation", stored.GetGeneration())
	return 0, nil
}

// errDeleted is why an object is written again.
var errDeleted = errors.New("it was deleted at once")

// write creates an object, or replaces the spec of an existing one, with the labels and owners that
// it needs, and returns what is stored. Server-side apply alone retains what others have added, and
// one additional condition can be enough for a policy to deny nothing. Therefore the whole spec is
// replaced, whether or not the cache, which selects by label, has the object: before applying,
// because a mixture of two specs may deny less than either or be invalid, and afterwards, because
// the object may have been created meanwhile.
func (r *Reconciler) write(ctx context.Context, o managedObject) (client.Object, error) {
	if _, err := r.replaceSpec(ctx, o); client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	if err := r.Client.Apply(ctx, o.want, objects.FieldOwner, client.ForceOwnership); err != nil {
		return nil, err
	}
	stored, err := r.replaceSpec(ctx, o)
	if apierrors.IsNotFound(err) {
		return nil, errDeleted
	}
	return stored, err
}

// replaceSpec replaces the spec of an existing object, and returns what is stored then.
func (r *Reconciler) replaceSpec(ctx context.Context, o managedObject) (client.Object, error) {
	patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec", "value": o.spec}})
	if err != nil {
		return nil, fmt.Errorf("encode the spec of the %s %s: %w", o.kind, o.name, err)
	}
	stored := o.empty()
	stored.SetName(o.name)
	return stored, r.Client.Patch(ctx, stored, client.RawPatch(types.JSONPatchType, patch), objects.FieldOwner)
}

// pause returns how long an object must not be written again; 0: it may be now, and then must
// pause.
func (r *Reconciler) pause(id string) time.Duration {
	if wait := retry.ApplyPause - r.Clock.Since(r.lastApplied[id]); wait > 0 {
		return wait
	}
	r.lastApplied[id] = r.Clock.Now()
	return 0
}

// notApplied reports that an object was not applied. What will not change by itself is retried after
// a while, without delaying the others.
func (r *Reconciler) notApplied(ctx context.Context, owner admission.Owner, kind, name string, err error) (again time.Duration, failure error) {
	if !retry.Denied(err) && !apierrors.IsBadRequest(err) && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return 0, fmt.Errorf("apply the %s %s: %w", kind, name, err)
	}
	r.report(ctx, owner, fmt.Sprintf("the API server denies the %s %s; retrying every minute: %s", kind, name, retry.Message(err)))
	return retry.DeniedPause, nil
}

// report reports in the log and in an event what cannot be maintained.
func (r *Reconciler) report(ctx context.Context, owner admission.Owner, what string) {
	log.FromContext(ctx).Info("The objects of --manage-cluster-objects cannot be maintained", "why", what)
	r.Events.Write(metav1.NamespaceDefault, corev1.ObjectReference{
		APIVersion: "v1", Kind: metrics.KindNamespace, Name: owner.Name, UID: owner.UID,
	}, events.Kind{Severity: events.Warning, Reason: eventClusterObjectDenied, Action: actionApply}, what)
}

// admissionFingerprint is the fingerprint of what users could change in a policy or binding.
func admissionFingerprint(o client.Object) (uint64, error) {
	var spec any
	switch o := o.(type) {
	case *admissionv1.ValidatingAdmissionPolicy:
		spec = o.Spec
	case *admissionv1.ValidatingAdmissionPolicyBinding:
		spec = o.Spec
	}
	return objects.Fingerprint([]any{o.GetUID(), o.GetLabels(), o.GetAnnotations(), o.GetOwnerReferences(), spec})
}

package controllers

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
)

// What an event says of an object that cannot be kept.
const (
	eventClusterObjectRefused = "ClusterObjectRefused"
	actionApply               = "Apply"
)

// errNoPolicies is why policies are not kept on an old API server.
var errNoPolicies = errors.New("the API server does not serve ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1, which Kubernetes has since 1.30: the limits that they set do not hold. Once it does, the controller makes them")

// ClusterObjectsReconciler keeps the admission policies and the labels of its
// namespace, where whoever installs nodeproxy cannot carry them. It does so whether
// there is a NodeProxy or not: the policies are about what agents and people write,
// too. It deletes nothing; the namespace owns the policies, and they go with it. It
// runs once at a time.
type ClusterObjectsReconciler struct {
	leadership Leadership
	client     client.Client // reads come from the cache
	policies   *policyWatch
	events     *events
	clock      clock.PassiveClock
	metrics    *metrics
	namespace  string

	applied     map[string]written // by kind and name
	lastApplied map[string]time.Time
}

func (r *ClusterObjectsReconciler) setup(mgr ctrl.Manager, o controller.Options, wake <-chan event.GenericEvent, again func()) error {
	r.applied, r.lastApplied = map[string]written{}, map[string]time.Time{}
	var err error
	if r.policies, err = newPolicyWatch(mgr, r.clock, again); err != nil {
		return err
	}
	only := onlyNodeProxy()
	own := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == r.namespace })
	return builder.ControllerManagedBy(mgr).
		Named("clusterobjects").
		Watches(&corev1.Namespace{}, only, builder.WithPredicates(own)).
		WatchesRawSource(source.Channel(wake, only)). // it leads now, or policies have changed
		WithOptions(o).
		Complete(leading(r.leadership, r))
}

// keptObject is a policy or a binding.
type keptObject struct {
	kind, name string
	want       runtime.ApplyConfiguration
	spec       any                  // of want
	empty      func() client.Object // to read into
}

// Reconcile applies what differs.
func (r *ClusterObjectsReconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	namespace := &corev1.Namespace{}
	found, err := get(ctx, r.client, client.ObjectKey{Name: r.namespace}, namespace)
	if err != nil || !found || namespace.DeletionTimestamp != nil {
		return ctrl.Result{}, err
	}
	owner := admission.Owner{Name: namespace.Name, UID: namespace.UID}
	again, err := r.keepLabels(ctx, namespace, owner)
	errs := []error{err}
	synced, failures := r.policies.state()
	for _, failure := range failures {
		r.say(ctx, owner, failure)
		again = sooner(again, refusedPause)
	}
	if !synced {
		return ctrl.Result{RequeueAfter: again}, err
	}
	objects, err := keptObjects(owner)
	if err != nil {
		return ctrl.Result{}, err
	}
	for _, o := range objects {
		next, err := r.keep(ctx, o, owner)
		again, errs = sooner(again, next), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

func keptObjects(owner admission.Owner) ([]keptObject, error) {
	objects, err := admission.Read(owner)
	if err != nil {
		return nil, err
	}
	var out []keptObject
	for _, p := range objects.Policies {
		out = append(out, keptObject{kindAdmissionPolicy, *p.Name, p, p.Spec, func() client.Object { return &admissionv1.ValidatingAdmissionPolicy{} }})
	}
	for _, b := range objects.Bindings {
		out = append(out, keptObject{kindAdmissionBinding, *b.Name, b, b.Spec, func() client.Object { return &admissionv1.ValidatingAdmissionPolicyBinding{} }})
	}
	return out, nil
}

// keepLabels restores the labels of the namespace that agents need. again is when
// to look the next time; 0: when something changes.
func (r *ClusterObjectsReconciler) keepLabels(ctx context.Context, namespace *corev1.Namespace, owner admission.Owner) (again time.Duration, err error) {
	if labels.SelectorFromSet(admission.Labels()).Matches(labels.Set(namespace.Labels)) {
		return 0, nil
	}
	if wait := r.pause(kindNamespace); wait > 0 {
		return wait, nil
	}
	if err := r.client.Apply(ctx, admission.Namespace(owner), fieldOwner, client.ForceOwnership); err != nil {
		return r.notTaken(ctx, owner, kindNamespace, owner.Name, err)
	}
	r.metrics.wrote(kindNamespace, opApply)
	log.FromContext(ctx).Info("Applied the pod security labels of the namespace", "namespace", owner.Name)
	return 0, nil
}

// keep applies a policy or binding if it differs.
func (r *ClusterObjectsReconciler) keep(ctx context.Context, o keptObject, owner admission.Owner) (again time.Duration, err error) {
	stored := o.empty()
	found, err := get(ctx, r.policies.cache, client.ObjectKey{Name: o.name}, stored)
	if err != nil {
		return 0, err
	}
	if found && stored.GetDeletionTimestamp() != nil {
		return 0, nil // its end will be seen
	}
	wanted, err := fingerprint(o.want)
	if err != nil {
		return 0, err
	}
	id := o.kind + "/" + o.name
	if found {
		now, err := admissionFingerprint(stored)
		if err != nil {
			return 0, err
		}
		if r.applied[id] == (written{wanted: wanted, stored: now}) {
			r.metrics.skip(o.kind)
			return 0, nil
		}
	}
	if wait := r.pause(id); wait > 0 {
		return wait, nil
	}
	delete(r.applied, id)
	stored, err = r.write(ctx, o)
	if err != nil {
		return r.notTaken(ctx, owner, o.kind, o.name, err)
	}
	now, err := admissionFingerprint(stored)
	if err != nil {
		return 0, err
	}
	r.applied[id] = written{wanted: wanted, stored: now}
	r.metrics.wrote(o.kind, opApply)
	log.FromContext(ctx).Info("Applied an admission policy or its binding", "kind", o.kind, "name", o.name, "generation", stored.GetGeneration())
	return 0, nil
}

// errDeleted is why an object is written again.
var errDeleted = errors.New("it was deleted at once")

// write makes an object, or the spec of one that exists ours, with the labels and
// owners that it needs, and returns what is stored. Server-side apply alone leaves
// what somebody else has added, and one more condition can be all it takes to have a
// policy refuse nothing. So the whole spec is replaced, whether the cache, which goes
// by a label, holds the object or not: before, because a mixture of two specs may
// refuse less than either, or not be allowed at all, and afterwards, because somebody
// else may have made the object in between.
func (r *ClusterObjectsReconciler) write(ctx context.Context, o keptObject) (client.Object, error) {
	if _, err := r.replaceSpec(ctx, o); client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	if err := r.client.Apply(ctx, o.want, fieldOwner, client.ForceOwnership); err != nil {
		return nil, err
	}
	stored, err := r.replaceSpec(ctx, o)
	if apierrors.IsNotFound(err) {
		return nil, errDeleted
	}
	return stored, err
}

// replaceSpec replaces the spec of an object that exists, and returns what is
// stored then.
func (r *ClusterObjectsReconciler) replaceSpec(ctx context.Context, o keptObject) (client.Object, error) {
	patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec", "value": o.spec}})
	if err != nil {
		return nil, fmt.Errorf("encode the spec of the %s %s: %w", o.kind, o.name, err)
	}
	stored := o.empty()
	stored.SetName(o.name)
	return stored, r.client.Patch(ctx, stored, client.RawPatch(types.JSONPatchType, patch), fieldOwner)
}

// pause is how long to wait until an object may be written again; 0: it may now,
// and the next one waits.
func (r *ClusterObjectsReconciler) pause(id string) time.Duration {
	if wait := applyPause - r.clock.Since(r.lastApplied[id]); wait > 0 {
		return wait
	}
	r.lastApplied[id] = r.clock.Now()
	return 0
}

// notTaken says that the API server has not taken an object. What cannot change by
// itself is tried again after a while, without keeping the others waiting.
func (r *ClusterObjectsReconciler) notTaken(ctx context.Context, owner admission.Owner, kind, name string, err error) (again time.Duration, failure error) {
	if !refusedByAPI(err) && !apierrors.IsBadRequest(err) && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return 0, fmt.Errorf("apply the %s %s: %w", kind, name, err)
	}
	r.say(ctx, owner, fmt.Sprintf("the API server does not take the %s %s, it is tried again every minute: %s", kind, name, refusalMessage(err)))
	return refusedPause, nil
}

// say says in the log and in an event what cannot be kept.
func (r *ClusterObjectsReconciler) say(ctx context.Context, owner admission.Owner, what string) {
	log.FromContext(ctx).Info("What --manage-cluster-objects asks for cannot be kept", "why", what)
	r.events.say(metav1.NamespaceDefault, corev1.ObjectReference{
		APIVersion: "v1", Kind: kindNamespace, Name: owner.Name, UID: owner.UID,
	}, eventKind{warning, eventClusterObjectRefused, actionApply}, what)
}

// admissionFingerprint is that of what people could change in a policy or binding.
func admissionFingerprint(o client.Object) (uint64, error) {
	var spec any
	switch o := o.(type) {
	case *admissionv1.ValidatingAdmissionPolicy:
		spec = o.Spec
	case *admissionv1.ValidatingAdmissionPolicyBinding:
		spec = o.Spec
	}
	return fingerprint([]any{o.GetUID(), o.GetLabels(), o.GetAnnotations(), o.GetOwnerReferences(), spec})
}

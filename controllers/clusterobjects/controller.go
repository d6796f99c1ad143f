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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/controllers/admission"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

const (
	eventClusterObjectDenied = "ClusterObjectDenied"
	actionApply              = "Apply"
)

// Reconciler maintains the admission policies and the labels of its namespace, for installers that
// cannot install them. It does so with or without a NodeProxy: the policies also apply to what
// agents and users write. It deletes nothing; the namespace owns the policies, and they are deleted
// with it. It runs once at a time.
type Reconciler struct {
	Client    client.Client // reads come from the cache
	Events    *events.Recorder
	Applier   *objects.Applier
	Namespace string

	policies *policyWatch
}

// Setup adds the reconciler to a manager. Wake triggers it.
func (r *Reconciler) Setup(s watches.Setup, wake func()) (err error) {
	if r.policies, err = newPolicyWatch(s.Manager, r.Applier.Clock, wake); err != nil {
		return err
	}
	own := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == r.Namespace })
	return s.Add("clusterobjects", r, watches.On(&corev1.Namespace{}, own))
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
	desired, err := admission.Read(owner)
	if err != nil {
		return ctrl.Result{}, err
	}
	for _, o := range desired {
		next, err := r.restore(ctx, o, owner)
		again, errs = retry.Sooner(again, next), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// restoreLabels restores the labels of the namespace that agents need. again is when to check next;
// 0: when something changes.
func (r *Reconciler) restoreLabels(ctx context.Context, namespace *corev1.Namespace, owner admission.Owner) (again time.Duration, err error) {
	if labels.SelectorFromSet(admission.Labels()).Matches(labels.Set(namespace.Labels)) {
		return 0, nil
	}
	if wait := r.Applier.Pause(metrics.KindNamespace); wait > 0 {
		return wait, nil
	}
	if err := r.Client.Apply(ctx, admission.Namespace(owner), objects.FieldOwner, client.ForceOwnership); err != nil {
		return r.notApplied(ctx, owner, metrics.KindNamespace, owner.Name, err)
	}
	r.Applier.Metrics.Wrote(metrics.KindNamespace, metrics.OpApply)
	log.FromContext(ctx).Info("Applied the pod security labels of the namespace", "namespace", owner.Name)
	return 0, nil
}

// restore applies a policy or binding if it differs.
func (r *Reconciler) restore(ctx context.Context, desired *unstructured.Unstructured, owner admission.Owner) (again time.Duration, err error) {
	kind, name, stored := desired.GetKind(), desired.GetName(), empty(desired)
	exists, err := objects.Get(ctx, r.policies.cache, client.ObjectKey{Name: name}, stored)
	if err != nil || stored.GetDeletionTimestamp() != nil {
		return 0, err // its end triggers this again
	}
	again, err = r.Applier.Apply(kind, name, stored, exists, desired, func() (client.Object, error) {
		out, err := r.write(ctx, desired)
		if err == nil {
			log.FromContext(ctx).Info("Applied an admission policy or its binding", "kind", kind, "name", name, "generation", out.GetGeneration())
		}
		return out, err
	})
	if err != nil {
		return r.notApplied(ctx, owner, kind, name, err)
	}
	return again, nil
}

// empty returns an object of the same kind to read into.
func empty(o *unstructured.Unstructured) client.Object {
	if o.GetKind() == admission.KindPolicy {
		return &admissionv1.ValidatingAdmissionPolicy{}
	}
	return &admissionv1.ValidatingAdmissionPolicyBinding{}
}

// errDeleted causes a retry.
var errDeleted = errors.New("deleted right after it was applied")

// write creates an object, or replaces the spec of an existing one, with the labels and owners that
// it needs, and returns what is stored. Server-side apply alone retains what others have added, and
// one additional condition can be enough for a policy to deny nothing. Therefore the whole spec is
// replaced, whether or not the cache, which selects by label, has the object: before applying,
// because a mixture of two specs may deny less than either or be invalid, and afterwards, because
// the object may have been created meanwhile.
func (r *Reconciler) write(ctx context.Context, desired *unstructured.Unstructured) (client.Object, error) {
	spec, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec", "value": desired.Object["spec"]}})
	if err != nil {
		return nil, fmt.Errorf("encode the spec of the %s %s: %w", desired.GetKind(), desired.GetName(), err)
	}
	replaceSpec := func() (client.Object, error) {
		stored := empty(desired)
		stored.SetName(desired.GetName())
		return stored, r.Client.Patch(ctx, stored, client.RawPatch(types.JSONPatchType, spec), objects.FieldOwner)
	}
	if _, err := replaceSpec(); client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(desired.DeepCopy()), objects.FieldOwner, client.ForceOwnership); err != nil {
		return nil, err
	}
	stored, err := replaceSpec()
	if apierrors.IsNotFound(err) {
		return nil, errDeleted
	}
	return stored, err
}

// notApplied reports that an object was not applied. What will not change by itself is retried after
// a while, without delaying the others.
func (r *Reconciler) notApplied(ctx context.Context, owner admission.Owner, kind, name string, err error) (again time.Duration, failure error) {
	if !retry.Denied(err) && !apierrors.IsBadRequest(err) && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return 0, fmt.Errorf("apply the %s %s: %w", kind, name, err)
	}
	r.report(ctx, owner, fmt.Sprintf("the API server denies the %s %s; retrying every minute: %s", kind, name, text.Clause(retry.Message(err))))
	return retry.DeniedPause, nil
}

// report reports in the log and in an event what cannot be maintained.
func (r *Reconciler) report(ctx context.Context, owner admission.Owner, what string) {
	log.FromContext(ctx).Info("Cannot maintain the objects of --manage-cluster-objects", "error", what)
	r.Events.Write(metav1.NamespaceDefault, corev1.ObjectReference{
		APIVersion: "v1", Kind: metrics.KindNamespace, Name: owner.Name, UID: owner.UID,
	}, events.Kind{Severity: events.Warning, Reason: eventClusterObjectDenied, Action: actionApply}, text.Capital(what)+".")
}

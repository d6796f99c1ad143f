package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// servicePoliciesInterval is the least time between two looks at what policies make of
// all Services.
const servicePoliciesInterval = time.Second

// ServicePolicyReconciler writes the status of all ServiceProxyPolicies, and has Services
// looked at again that were kept as they are when a change had stopped. It runs once at
// a time, for all policies together.
type ServicePolicyReconciler struct {
	leadership Leadership
	client     client.Client // reads come from the cache
	events     *events
	clock      clock.PassiveClock
	metrics    *metrics
	overrides  *overrides
	resume     func() // has kept Services looked at again

	lastLook time.Time
	// At the last look.
	halted   map[v1alpha1.Cause]string
	refusals int64 // changes of what nodes refuse, seen so far
}

// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=serviceproxypolicies,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=serviceproxypolicies/status,verbs=update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create

func (r *ServicePolicyReconciler) setup(mgr ctrl.Manager, o controller.Options, wake <-chan event.GenericEvent) error {
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{}}
	})
	refusals := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		r.overrides.rejectionsChanged()
		return []reconcile.Request{{}}
	})
	return builder.ControllerManagedBy(mgr).
		Named("servicepolicy").
		Watches(&v1alpha1.ServiceProxyPolicy{}, all).
		Watches(&v1alpha1.NodeProxy{}, all, builder.WithPredicates(comesOrGoes())).
		Watches(&v1alpha1.NodeProxyRules{}, refusals, builder.WithPredicates(refusalsChanged())).
		Watches(&v1alpha1.ServiceProxyRules{}, all, builder.WithPredicates(shapeChanged())).
		Watches(&corev1.Service{}, all).
		Watches(&corev1.Namespace{}, all, builder.WithPredicates(namespaceLabelsChanged())).
		WatchesRawSource(source.Channel(wake, all)).
		WithOptions(o).
		Complete(leading(r.leadership, r))
}

// shapeChanged lets pass what changes which policies shape rules, and how.
func shapeChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*v1alpha1.ServiceProxyRules), e.ObjectNew.(*v1alpha1.ServiceProxyRules)
		return before.Annotations[v1alpha1.AnnotationOverrides] != after.Annotations[v1alpha1.AnnotationOverrides] ||
			!equality.Semantic.DeepEqual(before.Spec.Policies, after.Spec.Policies)
	}}
}

func namespaceLabelsChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !maps.Equal(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels())
	}}
}

// Reconcile looks at all policies and writes the statuses that differ.
func (r *ServicePolicyReconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	var list v1alpha1.ServiceProxyPolicyList
	if err := r.client.List(ctx, &list); err != nil {
		return ctrl.Result{}, fmt.Errorf("list ServiceProxyPolicies: %w", err)
	}
	if len(list.Items) == 0 {
		r.metrics.showServicePolicies(nil)
		r.halted = nil
		return ctrl.Result{}, nil
	}
	if wait := servicePoliciesInterval - r.clock.Since(r.lastLook); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	r.lastLook = r.clock.Now()
	refusals := r.overrides.rejectionChanges() // before they are read
	look, err := r.look(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	// A stop may have come and gone since the last look.
	if halted := look.halted(); r.refusals != refusals || !maps.Equal(r.halted, halted) {
		r.halted, r.refusals = halted, refusals
		r.resume()
	}
	r.metrics.showServicePolicies(look.counts())
	var again ctrl.Result
	var errs []error
	for i := range list.Items {
		result, err := r.write(ctx, &list.Items[i], look)
		errs = append(errs, err)
		again.RequeueAfter = sooner(again.RequeueAfter, result.RequeueAfter)
	}
	if err := errors.Join(errs...); err != nil {
		return ctrl.Result{}, err
	}
	return again, nil
}

// look counts what policies make of all Services.
func (r *ServicePolicyReconciler) look(ctx context.Context) (*servicePolicyLook, error) {
	set, err := r.overrides.currentPolicies(ctx)
	if err != nil {
		return nil, err
	}
	on, err := switchedOn(ctx, r.client)
	if err != nil {
		return nil, err
	}
	look := newServicePolicyLook(set, on)
	var services corev1.ServiceList
	if err := r.client.List(ctx, &services); err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	for i := range services.Items {
		svc := &services.Items[i]
		if !render.Eligible(svc) {
			continue
		}
		stored := &v1alpha1.ServiceProxyRules{}
		found, err := get(ctx, r.client, client.ObjectKey{Name: rulesName(client.ObjectKeyFromObject(svc))}, stored)
		if err != nil {
			return nil, err
		}
		if !found {
			stored = nil
		}
		out, err := r.overrides.look(ctx, set, svc, stored)
		if err != nil {
			return nil, err
		}
		look.note(svc, out)
	}
	refused, err := r.overrides.rejected(ctx)
	if err != nil {
		return nil, err
	}
	for key, by := range refused {
		look.noteRefused(key, by, r.overrides.grantOf(ctx, key))
	}
	return look, nil
}

// write writes the status of a policy if it differs from what is stored, and an event if
// that is another story.
func (r *ServicePolicyReconciler) write(ctx context.Context, p *v1alpha1.ServiceProxyPolicy, look *servicePolicyLook) (ctrl.Result, error) {
	if look.set.generations[p.Name] != p.Generation { // it is about another one
		return ctrl.Result{RequeueAfter: servicePoliciesInterval}, nil
	}
	status := look.status(p, r.clock.Now())
	if equality.Semantic.DeepEqual(p.Status, *status) {
		r.metrics.skip(kindServicePolicy)
		return ctrl.Result{}, nil
	}
	changed := p.DeepCopy()
	changed.Status = *status
	if err := r.client.Status().Update(ctx, changed); err != nil {
		return ignoreRace(fmt.Errorf("update the status of ServiceProxyPolicy %s: %w", p.Name, err))
	}
	r.metrics.wrote(kindServicePolicy, opUpdate)
	if severity, reason, note := servicePolicyEvent(&p.Status, status); reason != "" {
		r.events.transitionOfPolicy(p, "ServiceProxyPolicy", eventKind{severity, reason, actionRender}, note)
	}
	return ctrl.Result{}, nil
}

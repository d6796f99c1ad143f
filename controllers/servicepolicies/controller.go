package servicepolicies

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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/overrides"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// interval is the least time between two passes over all Services.
const interval = time.Second

// Reconciler writes the status of all ServiceProxyPolicies, and resumes Services that retained their
// overrides while a change was halted. It runs once at a time, for all policies together.
type Reconciler struct {
	Client    client.Client // reads come from the cache
	Events    *events.Recorder
	Clock     clock.PassiveClock
	Metrics   *metrics.Metrics
	Overrides *overrides.Overrides
	Resume    func() // reconciles the Services that retain their overrides

	lastPass time.Time
	// At the last pass.
	halted     map[v1alpha1.Cause]string
	rejections int64 // changes of the rejections, seen so far
}

// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=serviceproxypolicies,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=serviceproxypolicies/status,verbs=update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create

// Setup adds the reconciler to a manager.
func (r *Reconciler) Setup(s watches.Setup) error {
	rejections := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		r.Overrides.RejectionsChanged()
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: v1alpha1.NodeProxyName}}}
	})
	return s.Add("servicepolicy", r,
		watches.On(&v1alpha1.ServiceProxyPolicy{}),
		watches.On(&v1alpha1.NodeProxy{}, watches.ComesOrGoes()),
		watches.By(&v1alpha1.NodeProxyRules{}, rejections, overrides.RejectionsChanged()),
		watches.On(&v1alpha1.ServiceProxyRules{}, watches.Changed(func(rules *v1alpha1.ServiceProxyRules) []any {
			return []any{rules.Annotations[v1alpha1.AnnotationOverrides], rules.Spec.Policies}
		})),
		watches.On(&corev1.Service{}),
		watches.On(&corev1.Namespace{}, watches.Changed(func(namespace *corev1.Namespace) []any { return []any{namespace.Labels} })))
}

// Reconcile checks all policies and writes the statuses that differ.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	var list v1alpha1.ServiceProxyPolicyList
	if err := r.Client.List(ctx, &list); err != nil {
		return ctrl.Result{}, fmt.Errorf("list ServiceProxyPolicies: %w", err)
	}
	if len(list.Items) == 0 {
		r.Metrics.ShowServicePolicies(nil)
		r.halted = nil
		return ctrl.Result{}, nil
	}
	if wait := interval - r.Clock.Since(r.lastPass); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	r.lastPass = r.Clock.Now()
	rejections := r.Overrides.RejectionChanges() // before they are read
	survey, err := r.survey(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	// A change may have halted and continued since the last pass.
	if halted := survey.halted(); r.rejections != rejections || !maps.Equal(r.halted, halted) {
		r.halted, r.rejections = halted, rejections
		r.Resume()
	}
	r.Metrics.ShowServicePolicies(survey.counts())
	var again ctrl.Result
	var errs []error
	for i := range list.Items {
		result, err := r.write(ctx, &list.Items[i], survey)
		errs = append(errs, err)
		again.RequeueAfter = retry.Sooner(again.RequeueAfter, result.RequeueAfter)
	}
	if err := errors.Join(errs...); err != nil {
		return ctrl.Result{}, err
	}
	return again, nil
}

func (r *Reconciler) survey(ctx context.Context) (*survey, error) {
	set, err := r.Overrides.CurrentPolicies(ctx)
	if err != nil {
		return nil, err
	}
	on, err := objects.SwitchedOn(ctx, r.Client)
	if err != nil {
		return nil, err
	}
	survey := newSurvey(set, on)
	var services corev1.ServiceList
	if err := r.Client.List(ctx, &services); err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	for i := range services.Items {
		svc := &services.Items[i]
		if !render.Eligible(svc) {
			continue
		}
		stored, err := objects.Find[v1alpha1.ServiceProxyRules](ctx, r.Client, client.ObjectKey{Name: objects.RulesName(client.ObjectKeyFromObject(svc))})
		if err != nil {
			return nil, err
		}
		out, err := r.Overrides.Decide(ctx, set, svc, stored)
		if err != nil {
			return nil, err
		}
		survey.note(svc, out)
	}
	rejected, err := r.Overrides.Rejected(ctx)
	if err != nil {
		return nil, err
	}
	for key, by := range rejected {
		survey.noteRejected(key, by, r.Overrides.GrantOf(ctx, key))
	}
	return survey, nil
}

// write writes the status of a policy if it differs from the stored one, and an event if its state
// has changed.
func (r *Reconciler) write(ctx context.Context, p *v1alpha1.ServiceProxyPolicy, survey *survey) (ctrl.Result, error) {
	if survey.set.Generations[p.Name] != p.Generation { // the survey is older or newer
		return ctrl.Result{RequeueAfter: interval}, nil
	}
	status := survey.status(p, r.Clock.Now())
	if equality.Semantic.DeepEqual(p.Status, *status) {
		r.Metrics.Skip(metrics.KindServicePolicy)
		return ctrl.Result{}, nil
	}
	changed := p.DeepCopy()
	changed.Status = *status
	if err := r.Client.Status().Update(ctx, changed); err != nil {
		return retry.IgnoreRace(fmt.Errorf("update the status of ServiceProxyPolicy %s: %w", p.Name, err))
	}
	r.Metrics.Wrote(metrics.KindServicePolicy, metrics.OpUpdate)
	if severity, reason, note := transition(&p.Status, status); reason != "" {
		r.Events.TransitionOfPolicy(p, "ServiceProxyPolicy", events.Kind{Severity: severity, Reason: reason, Action: events.ActionRender}, note)
	}
	return ctrl.Result{}, nil
}

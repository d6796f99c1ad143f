package agents

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// Reconciler maintains the agents' DaemonSet as NodeProxy specifies it, if the agents are Managed.
// It applies its fields and leaves all others alone. The DaemonSet has no owner: without NodeProxy
// the agents stay and retain their rules. It runs once at a time.
type Reconciler struct {
	Client   client.Client // reads come from the cache
	Findings *reports.Findings
	Applier  *objects.Applier
	Agents   agentdeploy.Options
}

// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxies,verbs=list;watch
// +kubebuilder:rbac:groups=apps,resources=daemonsets,verbs=list;watch;create;patch,resourceNames=nodeproxy-agent,namespace=nodeproxy-system

// Setup adds the reconciler to a manager.
func (r *Reconciler) Setup(s watches.Setup) error {
	return s.Add("agents", r, watches.On(&v1alpha1.NodeProxy{}, watches.SpecChanged()), watches.On(&appsv1.DaemonSet{}))
}

// Reconcile applies the DaemonSet if it differs.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	np, err := objects.NodeProxy(ctx, r.Client)
	if err != nil {
		return ctrl.Result{}, err
	}
	if np == nil || np.DeletionTimestamp != nil || !agentdeploy.Managed(np) {
		r.Findings.Report(reports.AboutDaemonSet, reports.Finding{})
		return ctrl.Result{}, nil
	}
	desired, err := agentdeploy.DaemonSet(np.Spec.Agent, r.Agents)
	if errors.Is(err, agentdeploy.ErrNoImage) {
		r.Findings.Report(reports.AboutDaemonSet, reports.Finding{
			Reason:  v1alpha1.ReasonNoAgentImage,
			Message: "No agent image is configured. Set spec.agent.image, or RELATED_IMAGE_AGENT in the controller's environment.",
		})
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	stored := &appsv1.DaemonSet{}
	exists, err := objects.Get(ctx, r.Client, client.ObjectKey{Namespace: r.Agents.Namespace, Name: agentdeploy.Name}, stored)
	if err != nil || stored.DeletionTimestamp != nil {
		return ctrl.Result{}, err // its end triggers this again
	}
	again, err := r.Applier.Apply(metrics.KindDaemonSet, agentdeploy.Name, stored, exists, desired, func() (client.Object, error) {
		return r.apply(ctx, desired)
	})
	if err != nil {
		return r.notApplied(ctx, err)
	}
	if again == 0 {
		r.Findings.Report(reports.AboutDaemonSet, reports.Finding{})
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// apply returns what the API server has stored, with which it fills the applied object.
func (r *Reconciler) apply(ctx context.Context, desired *appsv1ac.DaemonSetApplyConfiguration) (client.Object, error) {
	if err := r.Client.Apply(ctx, desired, objects.FieldOwner, client.ForceOwnership); err != nil {
		return nil, fmt.Errorf("apply the DaemonSet %s/%s: %w", r.Agents.Namespace, agentdeploy.Name, err)
	}
	stored := &appsv1.DaemonSet{}
	if err := agentdeploy.Convert(desired, stored); err != nil {
		return nil, err
	}
	log.FromContext(ctx).Info("Applied the agents' DaemonSet", "namespace", r.Agents.Namespace, "generation", stored.Generation)
	return stored, nil
}

// notApplied reports that the API server denied the DaemonSet.
func (r *Reconciler) notApplied(ctx context.Context, err error) (ctrl.Result, error) {
	var answer apierrors.APIStatus
	if errors.As(err, &answer) {
		r.Findings.Report(reports.AboutDaemonSet, reports.Finding{
			Reason: v1alpha1.ReasonDaemonSetDenied,
			Message: fmt.Sprintf("The API server denies the DaemonSet %s/%s, so agents are not updated: %s.",
				r.Agents.Namespace, agentdeploy.Name, text.Clause(retry.Message(err))),
		})
	}
	if retry.Denied(err) || apierrors.IsBadRequest(err) {
		log.FromContext(ctx).Info("The API server denied the agents' DaemonSet; retrying", "retryAfter", retry.DeniedPause.String(), "error", err.Error())
		return ctrl.Result{RequeueAfter: retry.DeniedPause}, nil
	}
	return ctrl.Result{}, err
}

package agents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
	"github.com/nodeproxy-io/nodeproxy/controllers/findings"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// Reconciler maintains the agents' DaemonSet as NodeProxy specifies it, if the agents are Managed.
// It applies its fields and leaves all others alone. The DaemonSet has no owner: without NodeProxy
// the agents stay and retain their rules. It runs once at a time.
type Reconciler struct {
	Leadership leader.Leadership
	Client     client.Client // reads come from the cache
	Clock      clock.PassiveClock
	Metrics    *metrics.Metrics
	Findings   *findings.Findings
	Namespace  string
	Image      string // unless NodeProxy names another
	// ExposeMetrics: the agents serve /metrics on every address of their node.
	ExposeMetrics bool
	// ShareProxyPorts: the agents' pods do not reserve kube-proxy's ports.
	ShareProxyPorts bool

	applied     objects.Written
	lastApplied time.Time
}

// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxies,verbs=list;watch
// +kubebuilder:rbac:groups=apps,resources=daemonsets,verbs=list;watch;create;patch,resourceNames=nodeproxy-agent,namespace=nodeproxy-system

// Setup adds the reconciler to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager, o controller.Options, wake <-chan event.GenericEvent) error {
	only := watches.OnlyNodeProxy()
	return builder.ControllerManagedBy(mgr).
		Named("agents").
		Watches(&v1alpha1.NodeProxy{}, only, builder.WithPredicates(watches.SpecChanged())).
		Watches(&appsv1.DaemonSet{}, only).
		WatchesRawSource(source.Channel(wake, only)). // a new term
		WithOptions(o).
		Complete(leader.Guard(r.Leadership, r))
}

// Reconcile applies the DaemonSet if it differs.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	np, err := objects.NodeProxy(ctx, r.Client)
	if err != nil {
		return ctrl.Result{}, err
	}
	if np == nil || np.DeletionTimestamp != nil || !agentdeploy.Managed(np) {
		r.Findings.Report(findings.AboutDaemonSet, findings.Finding{})
		return ctrl.Result{}, nil
	}
	want, err := agentdeploy.DaemonSet(np.Spec.Agent, r.Namespace, r.Image)
	if err == nil && r.ExposeMetrics {
		err = agentdeploy.ExposeMetrics(want)
	}
	if err == nil && r.ShareProxyPorts {
		err = agentdeploy.ShareProxyPorts(want)
	}
	if errors.Is(err, agentdeploy.ErrNoImage) {
		r.Findings.Report(findings.AboutDaemonSet, findings.Finding{Reason: v1alpha1.ReasonNoAgentImage, Message: err.Error()})
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	stored := &appsv1.DaemonSet{}
	found, err := objects.Get(ctx, r.Client, client.ObjectKey{Namespace: r.Namespace, Name: agentdeploy.Name}, stored)
	if err != nil {
		return ctrl.Result{}, err
	}
	if found && stored.DeletionTimestamp != nil {
		return ctrl.Result{}, nil // its end will be seen
	}
	desired, err := objects.Fingerprint(want)
	if err != nil {
		return ctrl.Result{}, err
	}
	if found {
		now, err := storedFingerprint(stored)
		if err != nil {
			return ctrl.Result{}, err
		}
		if r.applied == (objects.Written{Desired: desired, Stored: now}) {
			r.Metrics.Skip(metrics.KindDaemonSet)
			r.Findings.Report(findings.AboutDaemonSet, findings.Finding{})
			return ctrl.Result{}, nil
		}
	}
	if wait := retry.ApplyPause - r.Clock.Since(r.lastApplied); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	return r.apply(ctx, want, desired)
}

// apply writes the DaemonSet.
func (r *Reconciler) apply(ctx context.Context, want *appsv1ac.DaemonSetApplyConfiguration, desired uint64) (ctrl.Result, error) {
	r.applied, r.lastApplied = objects.Written{}, r.Clock.Now()
	if err := r.Client.Apply(ctx, want, objects.FieldOwner, client.ForceOwnership); err != nil {
		return r.notApplied(ctx, err)
	}
	stored, err := asStored(want)
	if err != nil {
		return ctrl.Result{}, err
	}
	now, err := storedFingerprint(stored)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.applied = objects.Written{Desired: desired, Stored: now}
	r.Metrics.Wrote(metrics.KindDaemonSet, metrics.OpApply)
	r.Findings.Report(findings.AboutDaemonSet, findings.Finding{})
	log.FromContext(ctx).Info("Applied the agents' DaemonSet", "namespace", r.Namespace, "generation", stored.Generation)
	return ctrl.Result{}, nil
}

// notApplied reports that the DaemonSet was not applied.
func (r *Reconciler) notApplied(ctx context.Context, err error) (ctrl.Result, error) {
	var answer apierrors.APIStatus
	if errors.As(err, &answer) {
		r.Findings.Report(findings.AboutDaemonSet, findings.Finding{
			Reason:  v1alpha1.ReasonDaemonSetDenied,
			Message: fmt.Sprintf("The API server denies the DaemonSet %s/%s, so the agents are not changed: %s", r.Namespace, agentdeploy.Name, retry.Message(err)),
		})
	}
	if retry.Denied(err) || apierrors.IsBadRequest(err) {
		log.FromContext(ctx).Info("The API server denied the agents' DaemonSet; retrying when something changes", "retryAfter", retry.DeniedPause.String(), "why", err.Error())
		return ctrl.Result{RequeueAfter: retry.DeniedPause}, nil
	}
	return ctrl.Result{}, fmt.Errorf("apply the DaemonSet %s/%s: %w", r.Namespace, agentdeploy.Name, err)
}

// asStored decodes an applied object, which the API server has filled with what it stored.
func asStored(applied *appsv1ac.DaemonSetApplyConfiguration) (*appsv1.DaemonSet, error) {
	out := &appsv1.DaemonSet{}
	text, err := json.Marshal(applied)
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		return nil, fmt.Errorf("decode the applied DaemonSet: %w", err)
	}
	return out, nil
}

// storedFingerprint is the fingerprint of what users could change in a DaemonSet.
func storedFingerprint(d *appsv1.DaemonSet) (uint64, error) {
	return objects.Fingerprint([]any{d.UID, d.Labels, d.Annotations, d.OwnerReferences, d.Spec})
}

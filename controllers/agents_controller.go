package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
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
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
)

// fieldOwner is who applies what, as managedFields show it.
const fieldOwner = client.FieldOwner("nodeproxy-controller")

const (
	// applyPause is the least time between two writes of the DaemonSet, so that
	// whoever keeps changing it is not fought at full speed.
	applyPause = time.Second
	// refusedPause is the time until a DaemonSet that the API server refuses is
	// tried again, if nothing else changes before.
	refusedPause = time.Minute
)

// AgentsReconciler keeps the agents' DaemonSet as NodeProxy asks, where the
// agents are Managed. It applies its fields and leaves all others alone. The
// DaemonSet has no owner: without NodeProxy the agents stay and hold. It runs
// once at a time.
type AgentsReconciler struct {
	leadership Leadership
	client     client.Client // reads come from the cache
	clock      clock.PassiveClock
	metrics    *metrics
	findings   *findings
	namespace  string
	image      string // unless NodeProxy names another
	// exposeMetrics: the agents answer /metrics on every address of their node.
	exposeMetrics bool
	// shareProxyPorts: the agents' pods do not reserve kube-proxy's ports.
	shareProxyPorts bool

	applied     written
	lastApplied time.Time
}

// written tells whether something has changed since the last write of an object:
// what is wanted, or what somebody else has made of it. What it lacks after a
// restart costs a write that changes nothing.
type written struct {
	wanted uint64
	stored uint64
}

// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxies,verbs=list;watch
// +kubebuilder:rbac:groups=apps,resources=daemonsets,verbs=list;watch;create;patch,resourceNames=nodeproxy-agent,namespace=nodeproxy-system

func (r *AgentsReconciler) setup(mgr ctrl.Manager, o controller.Options, wake <-chan event.GenericEvent) error {
	only := onlyNodeProxy()
	return builder.ControllerManagedBy(mgr).
		Named("agents").
		Watches(&v1alpha1.NodeProxy{}, only, builder.WithPredicates(specChanged())).
		Watches(&appsv1.DaemonSet{}, only).
		WatchesRawSource(source.Channel(wake, only)). // it leads now
		WithOptions(o).
		Complete(leading(r.leadership, r))
}

// onlyNodeProxy maps whatever changes to the one NodeProxy.
func onlyNodeProxy() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: v1alpha1.NodeProxyName}}}
	})
}

// Reconcile applies the DaemonSet if it differs.
func (r *AgentsReconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	np, err := nodeProxy(ctx, r.client)
	if err != nil {
		return ctrl.Result{}, err
	}
	if np == nil || np.DeletionTimestamp != nil || !agentdeploy.Managed(np) {
		r.findings.report(aboutDaemonSet, finding{})
		return ctrl.Result{}, nil
	}
	want, err := agentdeploy.DaemonSet(np.Spec.Agent, r.namespace, r.image)
	if err == nil && r.exposeMetrics {
		err = agentdeploy.ExposeMetrics(want)
	}
	if err == nil && r.shareProxyPorts {
		err = agentdeploy.ShareProxyPorts(want)
	}
	if errors.Is(err, agentdeploy.ErrNoImage) {
		r.findings.report(aboutDaemonSet, finding{v1alpha1.ReasonNoAgentImage, err.Error()})
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	stored := &appsv1.DaemonSet{}
	found, err := get(ctx, r.client, client.ObjectKey{Namespace: r.namespace, Name: agentdeploy.Name}, stored)
	if err != nil {
		return ctrl.Result{}, err
	}
	if found && stored.DeletionTimestamp != nil {
		return ctrl.Result{}, nil // its end will be seen
	}
	wanted, err := fingerprint(want)
	if err != nil {
		return ctrl.Result{}, err
	}
	if found {
		now, err := storedFingerprint(stored)
		if err != nil {
			return ctrl.Result{}, err
		}
		if r.applied == (written{wanted: wanted, stored: now}) {
			r.metrics.skip(kindDaemonSet)
			r.findings.report(aboutDaemonSet, finding{})
			return ctrl.Result{}, nil
		}
	}
	if wait := applyPause - r.clock.Since(r.lastApplied); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	return r.apply(ctx, want, wanted)
}

// apply writes the DaemonSet.
func (r *AgentsReconciler) apply(ctx context.Context, want *appsv1ac.DaemonSetApplyConfiguration, wanted uint64) (ctrl.Result, error) {
	r.applied, r.lastApplied = written{}, r.clock.Now()
	if err := r.client.Apply(ctx, want, fieldOwner, client.ForceOwnership); err != nil {
		return r.notTaken(ctx, err)
	}
	stored, err := asStored(want)
	if err != nil {
		return ctrl.Result{}, err
	}
	now, err := storedFingerprint(stored)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.applied = written{wanted: wanted, stored: now}
	r.metrics.wrote(kindDaemonSet, opApply)
	r.findings.report(aboutDaemonSet, finding{})
	log.FromContext(ctx).Info("Applied the agents' DaemonSet", "namespace", r.namespace, "generation", stored.Generation)
	return ctrl.Result{}, nil
}

// notTaken reports that the API server has not taken the DaemonSet.
func (r *AgentsReconciler) notTaken(ctx context.Context, err error) (ctrl.Result, error) {
	var answer apierrors.APIStatus
	if errors.As(err, &answer) {
		r.findings.report(aboutDaemonSet, finding{
			v1alpha1.ReasonDaemonSetRefused,
			fmt.Sprintf("the API server does not take the DaemonSet %s/%s, agents stay as they are: %s", r.namespace, agentdeploy.Name, refusalMessage(err)),
		})
	}
	if refusedByAPI(err) || apierrors.IsBadRequest(err) {
		log.FromContext(ctx).Info("The API server refuses the agents' DaemonSet; trying again when something changes", "atTheLatestIn", refusedPause.String(), "why", err.Error())
		return ctrl.Result{RequeueAfter: refusedPause}, nil
	}
	return ctrl.Result{}, fmt.Errorf("apply the DaemonSet %s/%s: %w", r.namespace, agentdeploy.Name, err)
}

// asStored reads an applied object, which holds what the API server has stored.
func asStored(applied *appsv1ac.DaemonSetApplyConfiguration) (*appsv1.DaemonSet, error) {
	out := &appsv1.DaemonSet{}
	text, err := json.Marshal(applied)
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		return nil, fmt.Errorf("read what the API server says of the DaemonSet: %w", err)
	}
	return out, nil
}

// storedFingerprint is that of what people could change in a DaemonSet.
func storedFingerprint(d *appsv1.DaemonSet) (uint64, error) {
	return fingerprint([]any{d.UID, d.Labels, d.Annotations, d.OwnerReferences, d.Spec})
}

// fingerprint is a hash of what something is in JSON.
func fingerprint(of any) (uint64, error) {
	hash, _, err := measure(of)
	return hash, err
}

// measure returns a hash of what something is in JSON, and how many bytes that takes.
func measure(of any) (hash uint64, bytes int, err error) {
	text, err := json.Marshal(of)
	if err != nil {
		return 0, 0, fmt.Errorf("encode %T: %w", of, err)
	}
	h := fnv.New64a()
	_, _ = h.Write(text) // a hash never returns an error
	return h.Sum64(), len(text), nil
}

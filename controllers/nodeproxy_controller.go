package controllers

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
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

// statusInterval is the least time between two looks at the whole cluster.
const statusInterval = time.Second

// NodeProxyReconciler writes the status of NodeProxy: the inventory, what is
// refused, and what the nodes report. It runs once at a time; the cache is
// synced before it starts.
type NodeProxyReconciler struct {
	client  client.Client // reads come from the cache
	clock   clock.PassiveClock
	memory  *serviceMemory
	version string

	lastLook time.Time
	// unsettled are the Services of which it is not known since the start
	// whether they are refused. nil at the start.
	unsettled map[types.NamespacedName]bool
}

// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxies,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxies/status,verbs=update

func (r *NodeProxyReconciler) setup(mgr ctrl.Manager, o controller.Options, wake <-chan event.GenericEvent) error {
	only := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: v1alpha1.NodeProxyName}}}
	})
	return builder.ControllerManagedBy(mgr).
		Named("nodeproxy").
		Watches(&v1alpha1.NodeProxy{}, only).
		Watches(&v1alpha1.NodeProxyRules{}, only).
		Watches(&v1alpha1.ServiceProxyRules{}, only, builder.WithPredicates(comesOrGoes())).
		Watches(&corev1.Service{}, only, builder.WithPredicates(eligibilityChanged())).
		WatchesRawSource(source.Channel(wake, only)).
		WithOptions(o).
		Complete(r)
}

// comesOrGoes lets creation and deletion pass.
func comesOrGoes() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}
}

// eligibilityChanged lets pass what may change the inventory.
func eligibilityChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before := render.Eligible(e.ObjectOld.(*corev1.Service))
		after := render.Eligible(e.ObjectNew.(*corev1.Service))
		return before != after
	}}
}

// Reconcile computes the status from the caches and writes it if it differs.
func (r *NodeProxyReconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	np, err := nodeProxy(ctx, r.client)
	if err != nil || np == nil {
		return ctrl.Result{}, err
	}
	if wait := statusInterval - r.clock.Since(r.lastLook); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	r.lastLook = r.clock.Now()
	status, complete, err := r.status(ctx, np)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !equality.Semantic.DeepEqual(np.Status, *status) {
		next := np.DeepCopy()
		next.Status = *status
		if err := r.client.Status().Update(ctx, next); err != nil {
			return ignoreRace(fmt.Errorf("update the status of NodeProxy: %w", err))
		}
	}
	if !complete {
		return ctrl.Result{RequeueAfter: statusInterval}, nil
	}
	return ctrl.Result{}, nil
}

// status computes the status afresh. It is complete once it is known what is
// refused; until then it repeats what was refused before the start.
func (r *NodeProxyReconciler) status(ctx context.Context, np *v1alpha1.NodeProxy) (*v1alpha1.NodeProxyStatus, bool, error) {
	var rules v1alpha1.NodeProxyRulesList
	if err := r.client.List(ctx, &rules); err != nil {
		return nil, false, fmt.Errorf("list NodeProxyRules: %w", err)
	}
	eligible, err := r.eligibleServices(ctx)
	if err != nil {
		return nil, false, err
	}
	refused := r.memory.refusedServices()
	inventory, err := r.inventory(ctx, eligible, refused)
	if err != nil {
		return nil, false, err
	}
	status := np.Status.DeepCopy()
	status.ObservedGeneration = np.Generation
	status.Version = r.version
	status.Inventory = inventory
	complete := r.allSettled(eligible)
	if complete {
		status.RefusedServices = int32(len(refused))
		status.Refused = refused[:min(len(refused), maxRefusedNamed)]
	}
	status.Nodes = countNodes(rules.Items)
	_, invalid := render.CompleteSettings(np.Spec.Settings)
	setReady(status, readiness(rules.Items, status.Nodes, invalid), np.Generation, r.clock.Now())
	return status, complete, nil
}

// eligibleServices returns every eligible Service.
func (r *NodeProxyReconciler) eligibleServices(ctx context.Context) (map[types.NamespacedName]bool, error) {
	var list corev1.ServiceList
	if err := r.client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	out := make(map[types.NamespacedName]bool, len(list.Items))
	for i := range list.Items {
		if render.Eligible(&list.Items[i]) {
			out[client.ObjectKeyFromObject(&list.Items[i])] = true
		}
	}
	return out, nil
}

// inventory names every eligible Service but those that are refused and have
// nothing stored. It never follows from stored rules alone: what vanished must
// still be in it.
func (r *NodeProxyReconciler) inventory(ctx context.Context, eligible map[types.NamespacedName]bool, refused []v1alpha1.RefusedService) (*v1alpha1.Inventory, error) {
	missing := map[types.NamespacedName]bool{}
	for _, s := range refused {
		key := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
		stored, err := get(ctx, r.client, client.ObjectKey{Name: rulesName(key)}, &v1alpha1.ServiceProxyRules{})
		if err != nil {
			return nil, err
		}
		missing[key] = !stored
	}
	names := make([]string, 0, len(eligible))
	for key := range eligible {
		if !missing[key] {
			names = append(names, rulesName(key))
		}
	}
	inventory := render.Inventory(names)
	return &inventory, nil
}

// allSettled tells whether of every Service that was there at the start it is
// known by now if it is refused, or it has gone.
func (r *NodeProxyReconciler) allSettled(eligible map[types.NamespacedName]bool) bool {
	if r.unsettled == nil {
		r.unsettled = make(map[types.NamespacedName]bool, len(eligible))
		for key := range eligible {
			r.unsettled[key] = true
		}
	}
	for key := range r.unsettled {
		if !eligible[key] || r.memory.settled(key) {
			delete(r.unsettled, key)
		}
	}
	return len(r.unsettled) == 0
}

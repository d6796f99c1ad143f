package startuptaint

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
)

// leaseRetry is how often the Lease of an agent is read whose report alone would be enough. The
// agent renews it when it has applied its first rules, and then every 30 s.
const leaseRetry = 5 * time.Second

// Reconciler removes the taint nodeproxy.io/agent-not-ready from Nodes whose agent serves pods. It
// never adds it. Nodes without it cost nothing.
type Reconciler struct {
	Leadership leader.Leadership
	Client     client.Client // reads come from the cache
	Live       client.Reader
	Metrics    *metrics.Metrics
	Namespace  string // of the agents' Leases

	mu sync.Mutex
	// seen is what the Leases said when each Node was first seen with the taint. A new leader waits
	// for one more renewal.
	seen map[string]firstSight // guarded by mu; by the Node's name
}

// firstSight is the state when a Node was first seen with the taint.
type firstSight struct {
	uid     types.UID // of the Node
	renewed metav1.MicroTime
}

// The role allows any patch of Nodes; config/admission/nodes.yaml restricts it to this one.
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch;patch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxyrules,verbs=list;watch
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get,namespace=nodeproxy-system

// Setup adds the reconciler to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager, o controller.Options) error {
	return builder.ControllerManagedBy(mgr).
		Named("startup-taint").
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(startupTaintConcerned())).
		Watches(&v1alpha1.NodeProxyRules{}, handler.EnqueueRequestsFromMapFunc(r.taintedNode), builder.WithPredicates(reportChanged())).
		WithOptions(o).
		Complete(leader.Guard(r.Leadership, r))
}

// startupTaintConcerned passes Nodes that have the taint or just lost it.
func startupTaintConcerned() predicate.Predicate {
	tainted := func(o client.Object) bool { return hasStartupTaint(o.(*corev1.Node)) }
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return tainted(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
			return before.UID != after.UID && tainted(after) ||
				!equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) && (tainted(before) || tainted(after))
		},
		DeleteFunc: func(e event.DeleteEvent) bool { return tainted(e.Object) },
	}
}

// reportChanged passes changes that may make a node ready.
func reportChanged() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld.(*v1alpha1.NodeProxyRules), e.ObjectNew.(*v1alpha1.NodeProxyRules)
			return !equality.Semantic.DeepEqual(before.Status.Conditions, after.Status.Conditions) ||
				!equality.Semantic.DeepEqual(before.Status.Agent, after.Status.Agent)
		},
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}

// taintedNode returns the Node of rules if it has the taint.
func (r *Reconciler) taintedNode(ctx context.Context, rules client.Object) []reconcile.Request {
	key := client.ObjectKey{Name: rules.GetName()}
	node := &corev1.Node{}
	if found, err := objects.Get(ctx, r.Client, key, node); err != nil || !found || !hasStartupTaint(node) {
		return nil // an error means that the cache has stopped
	}
	return []reconcile.Request{{NamespacedName: key}}
}

// Reconcile removes the taint from a Node if its agent serves pods now.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	node, rules := &corev1.Node{}, &v1alpha1.NodeProxyRules{}
	found, err := objects.Get(ctx, r.Client, req.NamespacedName, node)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !found || !hasStartupTaint(node) {
		r.forget(req.Name)
		return ctrl.Result{}, nil
	}
	before, known := r.recall(node)
	reported, err := objects.Get(ctx, r.Client, req.NamespacedName, rules)
	if err != nil || known && !(reported && servesPods(rules)) {
		return ctrl.Result{}, err // a report will trigger this again
	}
	lease, err := r.lease(ctx, req.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !known {
		before = r.note(node, lease)
	}
	switch {
	case !reported || !servesPods(rules):
		return ctrl.Result{}, nil
	case !renewedSince(before, lease) || !sameRun(rules, lease):
		return ctrl.Result{RequeueAfter: leaseRetry}, nil
	default:
		return r.untaint(ctx, node)
	}
}

// untaint removes the taint. The patch contains all other taints and the resourceVersion that they
// were read at, so that no concurrent change is lost.
func (r *Reconciler) untaint(ctx context.Context, node *corev1.Node) (ctrl.Result, error) {
	next := node.DeepCopy()
	next.Spec.Taints = withoutStartupTaint(node.Spec.Taints)
	if err := r.Client.Patch(ctx, next, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{})); err != nil {
		return retry.IgnoreRace(fmt.Errorf("remove the taint %s from Node %s: %w", v1alpha1.TaintAgentNotReady, node.Name, err))
	}
	r.Metrics.Wrote(metrics.KindTaint, metrics.OpUpdate)
	log.FromContext(ctx).Info("Removed the startup taint from a Node, because its agent serves pods now", "node", node.Name, "taint", v1alpha1.TaintAgentNotReady)
	return ctrl.Result{}, nil
}

// lease reads the Lease of a node's agent, nil if there is none.
func (r *Reconciler) lease(ctx context.Context, node string) (*coordinationv1.Lease, error) {
	return objects.Find[coordinationv1.Lease](ctx, r.Live, client.ObjectKey{Namespace: r.Namespace, Name: v1alpha1.AgentLeaseName(node)})
}

// recall returns what the Lease said when this Node was first seen.
func (r *Reconciler) recall(node *corev1.Node) (metav1.MicroTime, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, known := r.seen[node.Name]
	return first.renewed, known && first.uid == node.UID
}

// note records what the Lease, nil if there is none, says at first sight.
func (r *Reconciler) note(node *corev1.Node, lease *coordinationv1.Lease) metav1.MicroTime {
	first := firstSight{uid: node.UID}
	if lease != nil && lease.Spec.RenewTime != nil {
		first.renewed = *lease.Spec.RenewTime
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[string]firstSight{}
	}
	r.seen[node.Name] = first
	return first.renewed
}

func (r *Reconciler) forget(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.seen, node)
}

package startuptaint

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// leaseRetry is how often the Lease of an agent is read whose report alone would be enough. The
// agent renews it when it has applied its first rules, and then every 30 s.
const leaseRetry = 5 * time.Second

// Reconciler removes the taint nodeproxy.io/agent-not-ready from Nodes whose agent serves pods. It
// never adds it. Nodes without it cost nothing.
type Reconciler struct {
	Client    client.Client // reads come from the cache
	Live      client.Reader
	Metrics   *metrics.Metrics
	Namespace string // of the agents' Leases

	// seen has the firstSight of each Node with the taint, by name. A new leader waits for one more
	// renewal.
	seen sync.Map
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
func (r *Reconciler) Setup(s watches.Setup) error {
	return s.Add("startup-taint", r,
		watches.By(&corev1.Node{}, &handler.EnqueueRequestForObject{}, startupTaintConcerned()),
		watches.By(&v1alpha1.NodeProxyRules{}, handler.EnqueueRequestsFromMapFunc(r.taintedNode), reportChanged()))
}

// startupTaintConcerned passes Nodes that have the taint or just lost it.
func startupTaintConcerned() predicate.Predicate {
	concerned := predicate.NewPredicateFuncs(func(o client.Object) bool { return hasStartupTaint(o.(*corev1.Node)) })
	concerned.UpdateFunc = func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
		return before.UID != after.UID && hasStartupTaint(after) ||
			!equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) && (hasStartupTaint(before) || hasStartupTaint(after))
	}
	return concerned
}

// reportChanged passes changes that may make a node ready.
func reportChanged() predicate.Predicate {
	changed := watches.Changed(func(r *v1alpha1.NodeProxyRules) []any { return []any{r.Status.Conditions, r.Status.Agent} })
	changed.DeleteFunc = func(event.DeleteEvent) bool { return false }
	return changed
}

// taintedNode returns the Node of rules if it has the taint.
func (r *Reconciler) taintedNode(ctx context.Context, rules client.Object) []reconcile.Request {
	key := client.ObjectKey{Name: rules.GetName()}
	if node, err := objects.Find[corev1.Node](ctx, r.Client, key); err != nil || node == nil || !hasStartupTaint(node) {
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
		r.seen.Delete(req.Name)
		return ctrl.Result{}, nil
	}
	seen, _ := r.seen.Load(node.Name)
	first, known := seen.(firstSight)
	known = known && first.uid == node.UID
	reported, err := objects.Get(ctx, r.Client, req.NamespacedName, rules)
	if err != nil || known && !(reported && servesPods(rules)) {
		return ctrl.Result{}, err // a report will trigger this again
	}
	lease, err := objects.Find[coordinationv1.Lease](ctx, r.Live, client.ObjectKey{Namespace: r.Namespace, Name: v1alpha1.AgentLeaseName(req.Name)})
	if err != nil {
		return ctrl.Result{}, err
	}
	if !known {
		first = r.note(node, lease)
	}
	switch {
	case !reported || !servesPods(rules):
		return ctrl.Result{}, nil
	case !renewedSince(first.renewed, lease) || !sameRun(rules, lease):
		return ctrl.Result{RequeueAfter: leaseRetry}, nil
	default:
		return r.untaint(ctx, node)
	}
}

// untaint removes the taint. The patch contains all other taints and the resourceVersion that they
// were read at, so that no concurrent change is lost.
func (r *Reconciler) untaint(ctx context.Context, node *corev1.Node) (ctrl.Result, error) {
	next := node.DeepCopy()
	next.Spec.Taints = slices.DeleteFunc(slices.Clone(node.Spec.Taints), isStartupTaint)
	if err := r.Client.Patch(ctx, next, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{})); err != nil {
		return retry.IgnoreRace(fmt.Errorf("remove the taint %s from Node %s: %w", v1alpha1.TaintAgentNotReady, node.Name, err))
	}
	r.Metrics.Wrote(metrics.KindTaint, metrics.OpUpdate)
	log.FromContext(ctx).Info("Removed the startup taint from a Node, because its agent serves pods now", "node", node.Name, "taint", v1alpha1.TaintAgentNotReady)
	return ctrl.Result{}, nil
}

// note records the renewTime that the Lease, nil if there is none, has when its Node is first seen with the taint.
func (r *Reconciler) note(node *corev1.Node, lease *coordinationv1.Lease) firstSight {
	first := firstSight{uid: node.UID, renewed: ptr.Deref(cmp.Or(lease, &coordinationv1.Lease{}).Spec.RenewTime, metav1.MicroTime{})}
	r.seen.Store(node.Name, first)
	return first
}

// hasStartupTaint reports whether a Node still repels pods until its Services are served.
func hasStartupTaint(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, isStartupTaint)
}

// isStartupTaint compares the key: users who set the taint choose value and effect.
func isStartupTaint(t corev1.Taint) bool { return t.Key == v1alpha1.TaintAgentNotReady }

// servesPods reports whether, by the last report of a node, pods on it reach Services: the agent
// has applied or compared its desired rules, or another proxy is active there. The readiness of the
// agent's pod has the same criteria.
func servesPods(rules *v1alpha1.NodeProxyRules) bool {
	if !meta.IsStatusConditionTrue(rules.Status.Conditions, v1alpha1.ConditionAccepted) {
		return false
	}
	programmed := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
	return programmed != nil && (programmed.Status == metav1.ConditionTrue ||
		programmed.Reason == v1alpha1.ReasonAuditDiffers || programmed.Reason == v1alpha1.ReasonConflictingProxy)
}

// sameRun reports whether the agent that renews the Lease has written the report. A report outlives
// its writer, and rules outlive their Node, so a recreated Node has the report of its former life.
func sameRun(rules *v1alpha1.NodeProxyRules, lease *coordinationv1.Lease) bool {
	if rules.Status.Agent == nil {
		return false
	}
	started := lease.Spec.AcquireTime
	return started == nil || // an agent that does not report it
		started.Truncate(time.Second).Equal(rules.Status.Agent.StartTime.Time)
}

// renewedSince reports whether the agent has renewed its Lease since before, which is zero if there
// was none.
func renewedSince(before metav1.MicroTime, lease *coordinationv1.Lease) bool {
	return lease != nil && lease.Spec.RenewTime != nil && !lease.Spec.RenewTime.IsZero() && !lease.Spec.RenewTime.Equal(&before)
}

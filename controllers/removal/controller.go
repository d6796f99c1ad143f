package removal

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

const (
	eventNodesNotCleaned = "NodesNotCleaned"
	actionRemove         = "Remove"

	// removalLimit is how long to wait for nodes to remove their rules after NodeProxy was deleted,
	// from the API server's time of the deletion by the controller's clock.
	removalLimit = 5 * time.Minute
	// maxNodesNamed is how many nodes a message about a removal names.
	maxNodesNamed = 10
)

// Reconciler maintains the finalizer of removalPolicy Cleanup, and ensures that a NodeProxy that is
// deleted with it goes last: after the rules on the nodes, the agents' DaemonSet and the rendered
// objects. All of it follows from stored objects, so another controller can continue.
type Reconciler struct {
	Client    client.Client // reads come from the cache
	Live      client.Reader
	Events    *events.Recorder
	Clock     clock.PassiveClock
	Metrics   *metrics.Metrics
	Namespace string // of the agents' DaemonSet
	// reported is the NodeProxy for which the nodes that may still have rules were reported. Only
	// the one worker uses it.
	reported types.UID
}

// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxies,verbs=list;watch;patch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxyrules;serviceproxyrules,verbs=list;watch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create
// +kubebuilder:rbac:groups=apps,resources=daemonsets,verbs=delete,resourceNames=nodeproxy-agent,namespace=nodeproxy-system

// Setup adds the reconciler to a manager.
func (r *Reconciler) Setup(s watches.Setup) error {
	return s.Add("removal", r,
		// The status of NodeProxy affects neither the finalizer nor a removal.
		watches.On(&v1alpha1.NodeProxy{}, watches.Changed(func(np *v1alpha1.NodeProxy) []any {
			return []any{np.Generation, np.Finalizers, np.DeletionTimestamp}
		})),
		watches.On(&v1alpha1.NodeProxyRules{}, watches.Changed(func(r *v1alpha1.NodeProxyRules) []any {
			return []any{reports.Absent(r), r.Status.Conditions}
		})))
}

// Reconcile adds or removes the finalizer, and continues a removal.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	np, err := objects.NodeProxy(ctx, r.Client)
	if err != nil || np == nil {
		return ctrl.Result{}, err
	}
	has := controllerutil.ContainsFinalizer(np, v1alpha1.FinalizerCleanup)
	switch {
	case objects.BeingRemoved(np) && has:
		return r.remove(ctx, np)
	case np.DeletionTimestamp != nil && !has:
		return ctrl.Result{}, nil // another finalizer remains
	case has == objects.CleansUp(np):
		return ctrl.Result{}, nil
	default:
		return retry.IgnoreRace(r.setFinalizer(ctx, np, objects.CleansUp(np)))
	}
}

// setFinalizer adds the finalizer to NodeProxy or removes it. NodeProxy belongs to users, so this
// only writes the list of finalizers. The merge patch includes the resourceVersion, so that no
// other finalizer is lost. Server-side apply would write our entry alone, but it only removes what
// the same manager has added: a finalizer that was added by hand or restored from a backup would
// stay forever.
func (r *Reconciler) setFinalizer(ctx context.Context, np *v1alpha1.NodeProxy, on bool) error {
	next := np.DeepCopy()
	if on {
		controllerutil.AddFinalizer(next, v1alpha1.FinalizerCleanup)
	} else {
		controllerutil.RemoveFinalizer(next, v1alpha1.FinalizerCleanup)
	}
	if err := r.Client.Patch(ctx, next, client.MergeFromWithOptions(np, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("patch the finalizers of NodeProxy: %w", err)
	}
	r.Metrics.Wrote(metrics.KindNodeProxy, metrics.OpUpdate)
	return nil
}

// remove waits for the nodes, then deletes what is ours and releases NodeProxy.
func (r *Reconciler) remove(ctx context.Context, np *v1alpha1.NodeProxy) (ctrl.Result, error) {
	var rules v1alpha1.NodeProxyRulesList
	if err := r.Client.List(ctx, &rules); err != nil {
		return ctrl.Result{}, fmt.Errorf("list NodeProxyRules: %w", err)
	}
	state := removalOf(rules.Items)
	if len(state.waiting) > 0 {
		if left := removalLimit - r.Clock.Since(np.DeletionTimestamp.Time); left > 0 {
			return ctrl.Result{RequeueAfter: left}, nil
		}
	}
	r.reportLeft(ctx, np, state)
	if err := r.removeAgents(ctx, np); err != nil {
		return ctrl.Result{}, err
	}
	done, err := r.removeRendered(ctx, rules.Items)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !done {
		return ctrl.Result{RequeueAfter: retry.Soon}, nil
	}
	if err := r.setFinalizer(ctx, np, false); err != nil {
		return retry.IgnoreRace(err)
	}
	log.FromContext(ctx).Info("Removed NodeProxy and everything rendered for it")
	return ctrl.Result{}, nil
}

// reportLeft reports once which nodes may still have rules: afterwards their objects are deleted, and
// a later pass would only find those that are still in the cache.
func (r *Reconciler) reportLeft(ctx context.Context, np *v1alpha1.NodeProxy, state removalState) {
	left := state.left()
	if left == "" || r.reported == np.UID {
		return
	}
	r.reported = np.UID
	log.FromContext(ctx).Info("Some nodes have not reported the removal of their rules; run `nodeproxy-agent cleanup` there", "timedOut", state.waiting, "notResponding", state.silent)
	r.Events.WarnNodeProxy(np, eventNodesNotCleaned, actionRemove, notCleaned(left))
}

// notCleaned is the note of the event about nodes on which rules may be left.
func notCleaned(left string) string {
	return fmt.Sprintf("Not all nodes are clean: %s. Run `nodeproxy-agent cleanup` there (docs/removal.md).", left)
}

// removeAgents deletes the DaemonSet of agents that the controller runs, with their pods, which
// have nothing left to do.
func (r *Reconciler) removeAgents(ctx context.Context, np *v1alpha1.NodeProxy) error {
	if !agentdeploy.Managed(np) {
		return nil
	}
	agents := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: agentdeploy.Name}}
	if err := r.Client.Delete(ctx, agents); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete the DaemonSet %s/%s: %w", agents.Namespace, agents.Name, err)
	}
	return nil
}

// removeRendered deletes everything rendered, so that a later installation finds nothing stale, and
// reports whether the API server has none of it any more. Nothing is marked as released: agents
// that have not removed their rules retain them, and the others do nothing.
func (r *Reconciler) removeRendered(ctx context.Context, nodes []v1alpha1.NodeProxyRules) (done bool, err error) {
	var services v1alpha1.ServiceProxyRulesList
	if err := r.Client.List(ctx, &services); err != nil {
		return false, fmt.Errorf("list ServiceProxyRules: %w", err)
	}
	var all []client.Object
	for i := range services.Items {
		all = append(all, &services.Items[i])
	}
	for i := range nodes {
		all = append(all, &nodes[i])
	}
	if err := objects.InParallel(ctx, len(all), func(i int) error {
		object, uid, kind := all[i], all[i].GetUID(), metrics.KindService
		if err := client.IgnoreNotFound(r.Client.Delete(ctx, object, client.Preconditions{UID: &uid})); err != nil {
			return fmt.Errorf("delete %T %s: %w", object, object.GetName(), err)
		}
		if _, ok := object.(*v1alpha1.NodeProxyRules); ok {
			kind = metrics.KindNode
		}
		r.Metrics.Wrote(kind, metrics.OpDelete)
		return nil
	}); err != nil {
		return false, err
	}
	// The cache may lack a write that was in progress when NodeProxy was deleted.
	for _, kind := range []string{metrics.KindService, metrics.KindNode} {
		left := &metav1.PartialObjectMetadataList{}
		left.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind + "List"))
		if err := r.Live.List(ctx, left); err != nil {
			return false, fmt.Errorf("check that no %s is left: %w", kind, err)
		}
		for i := range left.Items {
			if left.Items[i].DeletionTimestamp == nil { // else another finalizer remains
				return false, nil
			}
		}
	}
	return true, nil
}

type removalState struct {
	removed int
	// waiting are the nodes that have not finished, by name, with the failure that they report, if
	// any.
	waiting []string
	// silent are the nodes whose agent once worked and does not respond any more, by name. They are
	// not waited for, and may still have rules.
	silent []string
}

// removalOf returns the progress. Nodes whose agent does not respond, or that are absent, are not
// waited for.
func removalOf(rules []v1alpha1.NodeProxyRules) removalState {
	var s removalState
	for i := range rules {
		r := &rules[i]
		if reports.Absent(r) {
			continue
		}
		if reports.NotResponding(r) {
			if r.Status.Agent != nil {
				s.silent = append(s.silent, r.Name)
			}
			continue
		}
		programmed := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgrammed)
		switch {
		case programmed != nil && programmed.Reason == v1alpha1.ReasonRemoved:
			s.removed++
		case programmed != nil && programmed.Reason == v1alpha1.ReasonFailed && programmed.Message != "":
			s.waiting = append(s.waiting, fmt.Sprintf("%s (%s)", r.Name, text.Truncate(text.FirstSentence(programmed.Message), 200)))
		default:
			s.waiting = append(s.waiting, r.Name)
		}
	}
	slices.Sort(s.waiting)
	slices.Sort(s.silent)
	return s
}

// left names the nodes on which rules may be left, once none is waited for any longer; empty: none.
func (s removalState) left() string {
	var parts []string
	if len(s.waiting) > 0 {
		parts = append(parts, fmt.Sprintf("rules may be left on %s, which did not finish within %s after NodeProxy was deleted",
			text.Some(s.waiting, maxNodesNamed), text.Age(removalLimit)))
	}
	if len(s.silent) > 0 {
		parts = append(parts, fmt.Sprintf("rules may be left on %s, where the agent does not respond", text.Some(s.silent, maxNodesNamed)))
	}
	return strings.Join(parts, "; ")
}

// Condition is the condition Ready of a NodeProxy that is being removed.
func Condition(np *v1alpha1.NodeProxy, rules []v1alpha1.NodeProxyRules) metav1.Condition {
	s := removalOf(rules)
	all := s.removed + len(s.waiting)
	message := text.CountOf(s.removed, all, "node") + text.For(all, " has removed its rules.", " have removed their rules.")
	if len(s.waiting) > 0 {
		message += fmt.Sprintf(" Waiting until %s at the latest for %s.",
			np.DeletionTimestamp.Add(removalLimit).UTC().Format(time.RFC3339), text.Some(s.waiting, maxNodesNamed))
	}
	return reports.False(v1alpha1.ConditionReady, v1alpha1.ReasonRemoving, message)
}

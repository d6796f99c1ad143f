package nodes

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/formats"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/nodesettings"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// absentNodeGrace is how long a Node must be absent before its rules are deleted: a kubelet that
// registers again must find them.
const absentNodeGrace = 10 * time.Minute

// incompleteRetry is how often a node is rendered again that retains the local endpoints of a
// Service because the Service exceeds a limit, or lacks some that no event reports yet.
const incompleteRetry = time.Minute

// Reconciler maintains one NodeProxyRules for every Linux Node. It gives new ones their settings;
// package rollouts changes them later.
type Reconciler struct {
	Client  client.Client // reads come from the cache
	Live    client.Reader
	Events  *events.Recorder
	Clock   clock.PassiveClock
	Metrics *metrics.Metrics
	Formats *formats.Formats
	pace    *nodePace
	limits  *overLimits
	LeftOut *LeftOut
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxies,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxypolicies,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxyrules,verbs=list;watch;create;update;delete

// Setup adds the reconciler to a manager.
func (r *Reconciler) Setup(s watches.Setup) error {
	r.pace, r.limits = newNodePace(), newOverLimits(r.Client)
	guarded := leader.Drop(s.Leadership, r)
	affected := affectedNodes{r.Client, newEnqueuePace(r.Client, r.Clock), r.limits, r.LeftOut}
	each := handler.EnqueueRequestsFromMapFunc
	begin := reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
		affected.pace.began(req.Name)
		return guarded.Reconcile(ctx, req)
	})
	return s.Complete("node", begin,
		// What is rendered; heartbeats do not change that.
		watches.By(&corev1.Node{}, &handler.EnqueueRequestForObject{}, watches.Changed(func(node *corev1.Node) []any {
			return []any{render.Linux(node), render.NodeFacts(node)}
		})),
		watches.By(&discoveryv1.EndpointSlice{}, affected.bySlice()),
		watches.By(&corev1.Service{}, affected.byPolicy()),
		// An agent's report must not render its node again: only spec and annotations are corrected.
		watches.By(&v1alpha1.NodeProxyRules{}, &handler.EnqueueRequestForObject{}, watches.Changed(func(rules *v1alpha1.NodeProxyRules) []any {
			return []any{rules.Generation, rules.Annotations}
		}), predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return !r.pace.isOwn(e.ObjectOld, e.ObjectNew) }}),
		watches.By(&v1alpha1.NodeProxy{}, each(affected.everyNode), watches.SpecChanged()),
		watches.By(&v1alpha1.NodeProxyPolicy{}, each(affected.nodesWithoutRules), predicate.GenerationChangedPredicate{}),
		watches.Channel(s.Wake, each(func(ctx context.Context, o client.Object) []reconcile.Request { // a new term
			all := affected.everyNode(ctx, o)
			r.pace.retain(all)
			return all
		})))
}

// Reconcile renders one node and writes the result if it differs.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if on, err := objects.SwitchedOn(ctx, r.Client); err != nil || !on {
		return ctrl.Result{}, err
	}
	node, stored, err := r.load(ctx, req.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	if node == nil && stored == nil {
		r.forget(ctx, req.Name)
		return ctrl.Result{}, nil
	}
	if stored != nil && r.pace.behind(stored) {
		return ctrl.Result{RequeueAfter: behindRetry}, nil
	}
	if wait := r.pace.waiting(req.Name, r.Clock.Now()); wait > 0 && node != nil && stored != nil && sameFacts(node, stored) {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	var settings *policies.NodeResolution
	if stored == nil { // package rollouts makes later changes
		if on, err := objects.MayCreate(ctx, r.Client, r.Live); err != nil || !on {
			return ctrl.Result{}, err
		}
		if settings, err = r.settings(ctx, node); err != nil {
			return ctrl.Result{}, err
		}
	}
	var absentSince time.Time
	if node == nil {
		absentSince = absence(stored, r.Clock.Now())
		if r.Clock.Since(absentSince) >= absentNodeGrace {
			return r.remove(ctx, stored)
		}
	}
	services, err := r.limits.servicesOn(ctx, req.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	format, err := r.Formats.Current(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	start := r.Clock.Now()
	local := render.LocalEndpoints(req.Name, services, cmp.Or(stored, &v1alpha1.NodeProxyRules{}).Spec.LocalEndpoints)
	input := render.NodeInput{Node: node, Current: stored, LocalEndpoints: local.Services, FormatVersion: format}
	if settings != nil {
		input.Settings, input.Policies = settings.Settings, settings.Policies
	}
	spec, ok := render.Node(input)
	r.Metrics.Rendered(metrics.KindNode, r.Clock.Since(start))
	if !ok { // a new Node without valid settings
		return ctrl.Result{}, nil
	}
	var again time.Duration
	if stored == nil {
		if err = r.create(ctx, req.Name, spec, settings); err == nil {
			r.pace.wrote(req.Name, local.Bytes, r.Clock.Now())
		}
	} else {
		again, err = r.update(ctx, spec, stored, absentSince, local.Bytes)
	}
	if err != nil {
		return retry.IgnoreRace(err)
	}
	if node == nil {
		again = retry.Sooner(again, absentNodeGrace-r.Clock.Since(absentSince))
	}
	if all := r.reportLeftOut(ctx, req.Name, local.LeftOut); local.OverLimit || !all {
		again = retry.Sooner(again, incompleteRetry)
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// forget drops a node whose rules are gone.
func (r *Reconciler) forget(ctx context.Context, name string) {
	r.pace.forget(name)
	r.reportLeftOut(ctx, name, nil)
}

// sameFacts reports whether the rules of a node have the current facts of its Node.
func sameFacts(node *corev1.Node, stored *v1alpha1.NodeProxyRules) bool {
	return stored.Annotations[v1alpha1.AnnotationNodeAbsentSince] == "" &&
		equality.Semantic.DeepEqual(stored.Spec.Node, render.NodeFacts(node))
}

// load returns the Linux Node and the stored rules of that name, nil for each that does not exist. A
// Node with another operating system counts as absent.
func (r *Reconciler) load(ctx context.Context, name string) (*corev1.Node, *v1alpha1.NodeProxyRules, error) {
	node, err := objects.Find[corev1.Node](ctx, r.Client, client.ObjectKey{Name: name})
	if err != nil {
		return nil, nil, err
	}
	if node != nil && !render.Linux(node) {
		node = nil
	}
	stored, err := objects.Find[v1alpha1.NodeProxyRules](ctx, r.Client, client.ObjectKey{Name: name})
	return node, stored, err
}

// settings returns the settings of a node that has no rules yet, nil without NodeProxy. The status
// of NodeProxy and of the policies reports what is invalid. An invalid policy does not apply to the
// node, but the node still serves Services.
func (r *Reconciler) settings(ctx context.Context, node *corev1.Node) (*policies.NodeResolution, error) {
	np, err := objects.NodeProxy(ctx, r.Client)
	if err != nil || np == nil {
		return nil, err
	}
	var all v1alpha1.NodeProxyPolicyList
	if err := r.Client.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("list NodeProxyPolicies: %w", err)
	}
	resolution := nodesettings.NewPolicySet(np, all.Items).Nodes.ResolveNew(node.Labels)
	if resolution.Invalid != nil {
		log.FromContext(ctx).V(2).Info("A new Node gets no rules, because its settings are not valid", "err", resolution.Invalid)
	}
	return resolution, nil
}

// create creates the rules of a node that has none.
func (r *Reconciler) create(ctx context.Context, name string, spec v1alpha1.NodeProxyRulesSpec, settings *policies.NodeResolution) error {
	rules := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	if err := nodesettings.SetGrant(rules, nodesettings.NewGrant(settings, nil, r.Clock.Now())); err != nil {
		return err
	}
	objects.Stamp(&rules.ObjectMeta, r.Clock.Now())
	if err := r.Client.Create(ctx, rules); err != nil {
		return fmt.Errorf("%w NodeProxyRules %s: %w", retry.ErrCreate, name, err)
	}
	r.Metrics.Wrote(metrics.KindNode, metrics.OpCreate)
	log.FromContext(ctx).V(2).Info("Created rules", "nodeProxyRules", klog.KObj(rules))
	return nil
}

// update writes the rules of a node if they differ. A change of local endpoints alone, whose size in
// bytes is given, is paced: if it must wait, update returns for how long.
func (r *Reconciler) update(ctx context.Context, spec v1alpha1.NodeProxyRulesSpec, stored *v1alpha1.NodeProxyRules, absentSince time.Time, bytes int) (time.Duration, error) {
	mark := ""
	if !absentSince.IsZero() {
		mark = absentSince.UTC().Format(time.RFC3339)
	}
	rest := spec
	rest.LocalEndpoints = stored.Spec.LocalEndpoints
	if stored.Annotations[v1alpha1.AnnotationNodeAbsentSince] == mark && equality.Semantic.DeepEqual(stored.Spec, rest) {
		changed := changedNamespaces(stored.Spec.LocalEndpoints, spec.LocalEndpoints)
		if len(changed) == 0 {
			r.pace.settled(stored.Name)
			r.Metrics.Skip(metrics.KindNode)
			return 0, nil
		}
		if wait := r.pace.wait(stored.Name, bytes, changed, r.Clock.Now()); wait > 0 {
			return wait, nil
		}
	}
	next := &v1alpha1.NodeProxyRules{ObjectMeta: *stored.ObjectMeta.DeepCopy(), Spec: spec}
	delete(next.Annotations, v1alpha1.AnnotationNodeAbsentSince)
	if mark != "" {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, v1alpha1.AnnotationNodeAbsentSince, mark)
	}
	objects.Stamp(&next.ObjectMeta, r.Clock.Now())
	r.pace.writes(stored)
	if err := r.Client.Update(ctx, next); err != nil {
		return 0, fmt.Errorf("update NodeProxyRules %s: %w", next.Name, err)
	}
	r.pace.written(next)
	r.pace.wrote(next.Name, bytes, r.Clock.Now())
	r.Metrics.Wrote(metrics.KindNode, metrics.OpUpdate)
	log.FromContext(ctx).V(2).Info("Updated rules", "nodeProxyRules", klog.KObj(next))
	return 0, nil
}

// absence returns since when a Node has been absent, as recorded in its rules; now if they have no
// record. It is stored in whole seconds.
func absence(stored *v1alpha1.NodeProxyRules, now time.Time) time.Time {
	since, err := time.Parse(time.RFC3339, stored.Annotations[v1alpha1.AnnotationNodeAbsentSince])
	if err != nil || since.After(now) {
		return now.Truncate(time.Second)
	}
	return since
}

// remove deletes the rules of a Node that has been absent long enough, after the API server itself
// has confirmed that it is.
func (r *Reconciler) remove(ctx context.Context, stored *v1alpha1.NodeProxyRules) (ctrl.Result, error) {
	node, err := objects.Find[corev1.Node](ctx, r.Live, client.ObjectKey{Name: stored.Name})
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("confirm that the Node is gone: %w", err)
	}
	if node != nil && render.Linux(node) {
		return ctrl.Result{RequeueAfter: retry.Soon}, nil // the watch will bring the Node
	}
	if stored.DeletionTimestamp != nil {
		return ctrl.Result{}, nil // waits for another finalizer
	}
	err = r.Client.Delete(ctx, stored, client.Preconditions{UID: &stored.UID, ResourceVersion: &stored.ResourceVersion})
	if err != nil {
		return retry.IgnoreRace(fmt.Errorf("delete NodeProxyRules %s: %w", stored.Name, err))
	}
	r.forget(ctx, stored.Name)
	r.Metrics.Wrote(metrics.KindNode, metrics.OpDelete)
	log.FromContext(ctx).Info("Deleted the rules of a Node that has been absent for ten minutes", "node", stored.Name)
	return ctrl.Result{}, nil
}

// reportLeftOut adds an event for each Service whose local endpoints are left out of a node, one for
// all nodes, and reports whether all were added. It retracts those of Services that are no longer
// left out of any node. A Service that does not exist has no events.
func (r *Reconciler) reportLeftOut(ctx context.Context, node string, list []render.LeftOut) (all bool) {
	r.LeftOut.inOrder.Lock() // nothing below waits for the API server
	defer r.LeftOut.inOrder.Unlock()
	withoutEvent, ended := r.LeftOut.set(node, list)
	for _, key := range ended {
		if svc, err := objects.Find[corev1.Service](ctx, r.Client, key); err == nil && svc != nil {
			r.Events.Warn(ctx, svc, EventLocalEndpointsLeftOut, events.ActionRender, "")
		}
	}
	written := 0
	for _, out := range withoutEvent {
		r.LeftOut.Reported(out.Service, true) // before the lookup, so that a later creation revokes it
		svc, err := objects.Find[corev1.Service](ctx, r.Client, out.Service)
		if err != nil || svc == nil { // the cache does not fail
			continue
		}
		if written++; written > eventsPerNode {
			r.LeftOut.Reported(out.Service, false)
			return false
		}
		if !r.Events.Warn(ctx, svc, EventLocalEndpointsLeftOut, events.ActionRender, "The rules of node "+node+" do not contain its local endpoints: "+out.Why()+
			", so a traffic policy Local finds none there. Give the Services of the namespace fewer ports, or spread their pods over more nodes") {
			r.LeftOut.Reported(out.Service, false)
			return false
		}
	}
	return true
}

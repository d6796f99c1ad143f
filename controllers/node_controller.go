package controllers

import (
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
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// absentNodeGrace is how long a Node must have been absent before its rules
// are deleted: a kubelet that registers again must find them.
const absentNodeGrace = 10 * time.Minute

// heldMembersRetry is how often a node is rendered again that keeps the local endpoints of a Service
// because the Service is over a limit, or lacks some that no event names yet.
const heldMembersRetry = time.Minute

// NodeReconciler keeps one NodeProxyRules for every Linux Node. It gives a new one its
// settings; that they change later is up to the RolloutReconciler.
type NodeReconciler struct {
	leadership Leadership
	client     client.Client // reads come from the cache
	live       client.Reader
	events     *events
	clock      clock.PassiveClock
	metrics    *metrics
	formats    *formats
	pace       *nodePace
	leftOut    *leftOut
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxies,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxypolicies,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxyrules,verbs=list;watch;create;update;delete

func (r *NodeReconciler) setup(mgr ctrl.Manager, o controller.Options, wake <-chan event.GenericEvent) error {
	affected := affectedNodes{r.client, newEnqueuePace(r.client, r.clock)}
	led := leading(r.leadership, r)
	return builder.ControllerManagedBy(mgr).
		Named("node").
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(nodeFactsChanged())).
		Watches(&discoveryv1.EndpointSlice{}, affected).
		Watches(&corev1.Service{}, affected.byPolicy()).
		Watches(&v1alpha1.NodeProxyRules{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(notStatusOnly())).
		Watches(&v1alpha1.NodeProxy{}, handler.EnqueueRequestsFromMapFunc(r.everyNode),
			builder.WithPredicates(specChanged())).
		Watches(&v1alpha1.NodeProxyPolicy{}, handler.EnqueueRequestsFromMapFunc(r.nodesWithoutRules),
														builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Channel(wake, handler.EnqueueRequestsFromMapFunc(r.everyNode))). // it leads now
		WithOptions(o).
		Complete(reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
			affected.pace.began(req.Name)
			return led.Reconcile(ctx, req)
		}))
}

// Reconcile renders one node and writes the result if it differs.
func (r *NodeReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if on, err := switchedOn(ctx, r.client); err != nil || !on {
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
	if wait := r.pace.waiting(req.Name, r.clock.Now()); wait > 0 && node != nil && stored != nil && sameFacts(node, stored) {
		return ctrl.Result{RequeueAfter: wait}, nil // whatever has become of its endpoints
	}
	var settings *policies.NodeResolution
	if stored == nil { // later changes are given to it by the RolloutReconciler
		if on, err := mayCreate(ctx, r.client, r.live); err != nil || !on {
			return ctrl.Result{}, err
		}
		if settings, err = r.settings(ctx, node); err != nil {
			return ctrl.Result{}, err
		}
	}
	var absentSince time.Time
	if node == nil {
		absentSince = absence(stored, r.clock.Now())
		if r.clock.Since(absentSince) >= absentNodeGrace {
			return r.remove(ctx, stored)
		}
	}
	services, err := servicesOn(ctx, r.client, req.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	format, err := r.formats.current(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	start := r.clock.Now()
	var former []v1alpha1.ServiceMembers
	if stored != nil {
		former = stored.Spec.Services
	}
	local := render.Members(req.Name, services, former)
	input := render.NodeInput{Node: node, Current: stored, Members: local.Services, FormatVersion: format}
	if settings != nil {
		input.Settings, input.Policies = settings.Settings, settings.Policies
	}
	spec, ok := render.Node(input)
	r.metrics.rendered(kindNode, r.clock.Since(start))
	if !ok { // a new Node, and no valid settings to give it
		return ctrl.Result{}, nil
	}
	var again time.Duration
	if stored == nil {
		if err = r.create(ctx, req.Name, spec, settings); err == nil {
			r.pace.wrote(req.Name, local.Bytes, r.clock.Now())
		}
	} else {
		again, err = r.update(ctx, spec, stored, absentSince, local.Bytes)
	}
	if err != nil {
		return ignoreRace(err)
	}
	if node == nil {
		again = sooner(again, absentNodeGrace-r.clock.Since(absentSince))
	}
	if said := r.sayLeftOut(ctx, req.Name, local.LeftOut); local.Held || !said {
		again = sooner(again, heldMembersRetry)
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// forget drops what is remembered of a node that has no rules any more.
func (r *NodeReconciler) forget(ctx context.Context, name string) {
	r.pace.forget(name)
	r.sayLeftOut(ctx, name, nil)
}

// sameFacts reports whether the rules of a node carry the facts of its Node as they are.
func sameFacts(node *corev1.Node, stored *v1alpha1.NodeProxyRules) bool {
	return stored.Annotations[v1alpha1.AnnotationNodeAbsentSince] == "" &&
		equality.Semantic.DeepEqual(stored.Spec.Node, render.NodeFacts(node))
}

// load returns the Linux Node and the stored rules of that name, nil for what
// does not exist. A Node that runs something else counts as absent.
func (r *NodeReconciler) load(ctx context.Context, name string) (*corev1.Node, *v1alpha1.NodeProxyRules, error) {
	node, stored := &corev1.Node{}, &v1alpha1.NodeProxyRules{}
	found, err := get(ctx, r.client, client.ObjectKey{Name: name}, node)
	if err != nil {
		return nil, nil, err
	}
	if !found || !render.Linux(node) {
		node = nil
	}
	found, err = get(ctx, r.client, client.ObjectKey{Name: name}, stored)
	if err != nil {
		return nil, nil, err
	}
	if !found {
		stored = nil
	}
	return node, stored, nil
}

// settings returns what policies make of the settings of a node that has no rules yet, nil
// without NodeProxy. The status of NodeProxy and of the policies says what is wrong where
// they are not valid; such policies leave the node without their part, not without Services.
func (r *NodeReconciler) settings(ctx context.Context, node *corev1.Node) (*policies.NodeResolution, error) {
	np, err := nodeProxy(ctx, r.client)
	if err != nil || np == nil {
		return nil, err
	}
	var all v1alpha1.NodeProxyPolicyList
	if err := r.client.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("list NodeProxyPolicies: %w", err)
	}
	resolution := newPolicySet(np, all.Items).nodes.ResolveNew(node.Labels)
	if resolution.Invalid != nil {
		log.FromContext(ctx).V(2).Info("A new Node gets no rules, its settings are not valid", "err", resolution.Invalid)
	}
	return resolution, nil
}

// create creates the rules of a node that has none.
func (r *NodeReconciler) create(ctx context.Context, name string, spec v1alpha1.NodeProxyRulesSpec, settings *policies.NodeResolution) error {
	rules := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	if err := setGrant(rules, newGrant(settings, nil, r.clock.Now())); err != nil {
		return err
	}
	if err := r.client.Create(ctx, rules); err != nil {
		return fmt.Errorf("%w NodeProxyRules %s: %w", errCreate, name, err)
	}
	r.metrics.wrote(kindNode, opCreate)
	log.FromContext(ctx).V(2).Info("Created rules", "nodeProxyRules", klog.KObj(rules))
	return nil
}

// update updates the rules of a node unless nothing would change. If nothing but the local endpoints
// would, which take so many bytes, they may have to wait: for the time returned.
func (r *NodeReconciler) update(ctx context.Context, spec v1alpha1.NodeProxyRulesSpec, stored *v1alpha1.NodeProxyRules, absentSince time.Time, bytes int) (time.Duration, error) {
	mark := ""
	if !absentSince.IsZero() {
		mark = absentSince.UTC().Format(time.RFC3339)
	}
	rest := spec
	rest.Services = stored.Spec.Services
	if stored.Annotations[v1alpha1.AnnotationNodeAbsentSince] == mark && equality.Semantic.DeepEqual(stored.Spec, rest) {
		changed := changedNamespaces(stored.Spec.Services, spec.Services)
		if len(changed) == 0 {
			r.pace.settled(stored.Name)
			r.metrics.skip(kindNode)
			return 0, nil
		}
		if wait := r.pace.wait(stored.Name, bytes, changed, r.clock.Now()); wait > 0 {
			return wait, nil
		}
	}
	next := &v1alpha1.NodeProxyRules{ObjectMeta: *stored.ObjectMeta.DeepCopy(), Spec: spec}
	delete(next.Annotations, v1alpha1.AnnotationNodeAbsentSince)
	if mark != "" {
		next.Annotations = merged(next.Annotations, map[string]string{v1alpha1.AnnotationNodeAbsentSince: mark})
	}
	if err := r.client.Update(ctx, next); err != nil {
		return 0, fmt.Errorf("update NodeProxyRules %s: %w", next.Name, err)
	}
	r.pace.wrote(next.Name, bytes, r.clock.Now())
	r.metrics.wrote(kindNode, opUpdate)
	log.FromContext(ctx).V(2).Info("Updated rules", "nodeProxyRules", klog.KObj(next))
	return 0, nil
}

// absence returns since when a Node has been absent: what its rules say, else
// from now on. The mark is stored in whole seconds.
func absence(stored *v1alpha1.NodeProxyRules, now time.Time) time.Time {
	since, err := time.Parse(time.RFC3339, stored.Annotations[v1alpha1.AnnotationNodeAbsentSince])
	if err != nil || since.After(now) {
		return now.Truncate(time.Second)
	}
	return since
}

// remove deletes the rules of a Node that has been absent long enough, once
// the API server itself has confirmed that it is.
func (r *NodeReconciler) remove(ctx context.Context, stored *v1alpha1.NodeProxyRules) (ctrl.Result, error) {
	node := &corev1.Node{}
	exists, err := get(ctx, r.live, client.ObjectKey{Name: stored.Name}, node)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("confirm that the Node is gone: %w", err)
	}
	if exists && render.Linux(node) {
		return ctrl.Result{RequeueAfter: retrySoon}, nil // the watch will bring the Node
	}
	if stored.DeletionTimestamp != nil {
		return ctrl.Result{}, nil // waits for somebody's finalizer
	}
	err = r.client.Delete(ctx, stored, client.Preconditions{UID: &stored.UID, ResourceVersion: &stored.ResourceVersion})
	if err != nil {
		return ignoreRace(fmt.Errorf("delete NodeProxyRules %s: %w", stored.Name, err))
	}
	r.forget(ctx, stored.Name)
	r.metrics.wrote(kindNode, opDelete)
	log.FromContext(ctx).Info("Deleted the rules of a Node that has been absent for ten minutes", "node", stored.Name)
	return ctrl.Result{}, nil
}

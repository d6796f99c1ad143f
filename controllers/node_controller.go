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
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// absentNodeGrace is how long a Node must have been absent before its rules
// are deleted: a kubelet that registers again must find them.
const absentNodeGrace = 10 * time.Minute

// NodeReconciler keeps one NodeProxyRules for every Linux Node.
type NodeReconciler struct {
	leadership Leadership
	client     client.Client // reads come from the cache
	live       client.Reader
	clock      clock.PassiveClock
	metrics    *metrics
	formats    *formats
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxies,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxyrules,verbs=list;watch;create;update;delete

func (r *NodeReconciler) setup(mgr ctrl.Manager, o controller.Options, wake <-chan event.GenericEvent) error {
	return builder.ControllerManagedBy(mgr).
		Named("node").
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(nodeFactsChanged())).
		Watches(&discoveryv1.EndpointSlice{}, affectedNodes{reader: mgr.GetClient()}).
		Watches(&v1alpha1.NodeProxyRules{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(notStatusOnly())).
		Watches(&v1alpha1.NodeProxy{}, handler.EnqueueRequestsFromMapFunc(r.everyNode),
														builder.WithPredicates(specChanged())).
		WatchesRawSource(source.Channel(wake, handler.EnqueueRequestsFromMapFunc(r.everyNode))). // it leads now
		WithOptions(o).
		Complete(leading(r.leadership, r))
}

// Reconcile renders one node and writes the result if it differs.
func (r *NodeReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if on, err := switchedOn(ctx, r.client); err != nil || !on {
		return ctrl.Result{}, err
	}
	node, stored, err := r.load(ctx, req.Name)
	if err != nil || node == nil && stored == nil {
		return ctrl.Result{}, err
	}
	settings, err := r.settings(ctx)
	if err != nil {
		return ctrl.Result{}, err
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
	spec, ok := render.Node(render.NodeInput{
		Node: node, Current: stored, Settings: settings, Members: render.Members(req.Name, services),
		FormatVersion: format,
	})
	r.metrics.rendered(kindNode, r.clock.Since(start))
	if !ok { // a new Node, and no valid settings to give it
		return ctrl.Result{}, nil
	}
	if err := r.write(ctx, req.Name, spec, stored, absentSince); err != nil {
		return ignoreRace(err)
	}
	if node == nil {
		return ctrl.Result{RequeueAfter: absentNodeGrace - r.clock.Since(absentSince)}, nil
	}
	return ctrl.Result{}, nil
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

// settings returns the settings of all nodes, nil when there is no NodeProxy
// or its settings are not valid: then nodes keep what they have. The
// NodeProxy's status says what is wrong.
func (r *NodeReconciler) settings(ctx context.Context) (*render.Settings, error) {
	np, err := nodeProxy(ctx, r.client)
	if err != nil || np == nil {
		return nil, err
	}
	settings, err := render.CompleteSettings((*v1alpha1.ProxySettings)(np.Spec.Settings))
	if err != nil {
		log.FromContext(ctx).V(2).Info("Nodes keep their settings, those of NodeProxy are not valid", "err", err)
		return nil, nil
	}
	return settings, nil
}

// write creates or updates the rules of a node unless nothing would change.
func (r *NodeReconciler) write(ctx context.Context, name string, spec v1alpha1.NodeProxyRulesSpec, stored *v1alpha1.NodeProxyRules, absentSince time.Time) error {
	logger := log.FromContext(ctx).V(2)
	if stored == nil {
		rules := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		if err := r.client.Create(ctx, rules); err != nil {
			return fmt.Errorf("%w NodeProxyRules %s: %w", errCreate, name, err)
		}
		r.metrics.wrote(kindNode, opCreate)
		logger.Info("Created rules", "nodeProxyRules", klog.KObj(rules))
		return nil
	}
	mark := ""
	if !absentSince.IsZero() {
		mark = absentSince.UTC().Format(time.RFC3339)
	}
	if stored.Annotations[v1alpha1.AnnotationNodeAbsentSince] == mark && equality.Semantic.DeepEqual(stored.Spec, spec) {
		r.metrics.skip(kindNode)
		return nil
	}
	next := &v1alpha1.NodeProxyRules{ObjectMeta: *stored.ObjectMeta.DeepCopy(), Spec: spec}
	delete(next.Annotations, v1alpha1.AnnotationNodeAbsentSince)
	if mark != "" {
		next.Annotations = merged(next.Annotations, map[string]string{v1alpha1.AnnotationNodeAbsentSince: mark})
	}
	if err := r.client.Update(ctx, next); err != nil {
		return fmt.Errorf("update NodeProxyRules %s: %w", name, err)
	}
	r.metrics.wrote(kindNode, opUpdate)
	logger.Info("Updated rules", "nodeProxyRules", klog.KObj(next))
	return nil
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
	r.metrics.wrote(kindNode, opDelete)
	log.FromContext(ctx).Info("Deleted the rules of a Node that has been absent for ten minutes", "node", stored.Name)
	return ctrl.Result{}, nil
}

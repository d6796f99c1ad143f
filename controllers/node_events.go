package controllers

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// affectedNodes enqueues the nodes whose members a slice event may have
// changed, and no others.
type affectedNodes struct {
	reader client.Reader
	pace   *enqueuePace
}

// handlerFuncs gives events of the first list their low priority.
func (h affectedNodes) handlerFuncs() handler.Funcs {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			slice := e.Object.(*discoveryv1.EndpointSlice)
			if e.IsInInitialList { // every slice comes by, so its own nodes are enough
				enqueue(q, h.pace.known(ctx, render.NodesNamed(slice)))
				return
			}
			h.enqueue(ctx, q, nil, slice)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, after := e.ObjectOld.(*discoveryv1.EndpointSlice), e.ObjectNew.(*discoveryv1.EndpointSlice)
			was, hadService := render.ServiceOf(before)
			is, hasService := render.ServiceOf(after)
			if was == is && hadService == hasService {
				h.enqueue(ctx, q, before, after)
				return
			}
			h.enqueue(ctx, q, before, nil)
			h.enqueue(ctx, q, nil, after)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			h.enqueue(ctx, q, e.Object.(*discoveryv1.EndpointSlice), nil)
		},
	}
}

// Create implements handler.EventHandler.
func (h affectedNodes) Create(ctx context.Context, e event.CreateEvent, q queue) {
	h.handlerFuncs().Create(ctx, e, q)
}

// Update implements handler.EventHandler.
func (h affectedNodes) Update(ctx context.Context, e event.UpdateEvent, q queue) {
	h.handlerFuncs().Update(ctx, e, q)
}

// Delete implements handler.EventHandler.
func (h affectedNodes) Delete(ctx context.Context, e event.DeleteEvent, q queue) {
	h.handlerFuncs().Delete(ctx, e, q)
}

// byPolicy enqueues the nodes with endpoints of a Service whose traffic policies change to or from
// Local: it decides what is left out.
func (h affectedNodes) byPolicy() handler.Funcs {
	enqueue := func(ctx context.Context, svc *corev1.Service, q queue) {
		all, err := slicesOf(ctx, h.reader, client.ObjectKeyFromObject(svc))
		if err != nil { // only a cache that has stopped fails
			log.FromContext(ctx).Error(err, "The nodes of a Service are not rendered", "service", client.ObjectKeyFromObject(svc))
			return
		}
		for _, slice := range all {
			h.pace.enqueue(ctx, q, svc.Namespace, render.NodesNamed(slice))
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if svc := e.Object.(*corev1.Service); !e.IsInInitialList && render.HasPolicyLocal(svc) {
				enqueue(ctx, svc, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if svc := e.ObjectNew.(*corev1.Service); render.HasPolicyLocal(svc) != render.HasPolicyLocal(e.ObjectOld.(*corev1.Service)) {
				enqueue(ctx, svc, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			if svc := e.Object.(*corev1.Service); render.HasPolicyLocal(svc) {
				enqueue(ctx, svc, q)
			}
		},
	}
}

// Generic implements handler.EventHandler.
func (h affectedNodes) Generic(context.Context, event.GenericEvent, queue) {}

// enqueue compares a slice before and after (nil: it did not exist or does not
// any more), both of one Service.
func (h affectedNodes) enqueue(ctx context.Context, q queue, before, after *discoveryv1.EndpointSlice) {
	slice := before
	if slice == nil {
		slice = after
	}
	svc, ok := render.ServiceOf(slice)
	if !ok {
		return
	}
	all, err := slicesOf(ctx, h.reader, svc)
	if err != nil { // only a cache that has stopped fails; rather too many than too few
		log.FromContext(ctx).Error(err, "All nodes of the slice are rendered", "service", svc)
		for _, s := range []*discoveryv1.EndpointSlice{before, after} {
			if s != nil {
				enqueue(q, h.pace.known(ctx, render.NodesNamed(s)))
			}
		}
		return
	}
	others := all[:0]
	for _, s := range all {
		if s.Name != slice.Name {
			others = append(others, s)
		}
	}
	h.pace.enqueue(ctx, q, svc.Namespace, render.NodesAffected(before, after, others))
}

func enqueue(q queue, nodes []string) {
	for _, n := range nodes {
		q.Add(nodeRequest(n))
	}
}

// everyNode returns every Node and every node that has rules.
func (r *NodeReconciler) everyNode(ctx context.Context, _ client.Object) []reconcile.Request {
	var nodes corev1.NodeList
	var rules v1alpha1.NodeProxyRulesList
	if err := r.client.List(ctx, &nodes); err != nil {
		log.FromContext(ctx).Error(err, "Nodes could not be listed after NodeProxy changed")
		return nil
	}
	if err := r.client.List(ctx, &rules); err != nil {
		log.FromContext(ctx).Error(err, "NodeProxyRules could not be listed after NodeProxy changed")
		return nil
	}
	out := make([]reconcile.Request, 0, len(nodes.Items)+len(rules.Items))
	for i := range nodes.Items {
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: nodes.Items[i].Name}})
	}
	for i := range rules.Items { // the queue takes each name once
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: rules.Items[i].Name}})
	}
	return out
}

// nodesWithoutRules returns the Linux Nodes that have no rules: their settings may have
// become valid.
func (r *NodeReconciler) nodesWithoutRules(ctx context.Context, _ client.Object) []reconcile.Request {
	var nodes corev1.NodeList
	if err := r.client.List(ctx, &nodes); err != nil {
		log.FromContext(ctx).Error(err, "Nodes could not be listed after a policy changed")
		return nil
	}
	var out []reconcile.Request
	for i := range nodes.Items {
		key := types.NamespacedName{Name: nodes.Items[i].Name}
		if found, err := get(ctx, r.client, key, &v1alpha1.NodeProxyRules{}); err == nil && !found && render.Linux(&nodes.Items[i]) {
			out = append(out, reconcile.Request{NamespacedName: key})
		}
	}
	return out
}

// nodeFactsChanged lets a Node's update pass when something that is rendered
// has changed; heartbeats have not.
func nodeFactsChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
		return render.Linux(before) != render.Linux(after) ||
			!equality.Semantic.DeepEqual(render.NodeFacts(before), render.NodeFacts(after))
	}}
}

// notStatusOnly keeps an agent's report from rendering its node again: only
// spec and annotations of rules are the controller's to correct.
func notStatusOnly() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
			!equality.Semantic.DeepEqual(e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations())
	}}
}

// specChanged lets creation of NodeProxy and changes of its spec pass, and the
// end of a removal.
func specChanged() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration()
		},
		DeleteFunc: removalEnded,
	}
}

// onCreate lets creation of NodeProxy pass, and the end of a removal.
func onCreate() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return beingRemoved(e.ObjectOld.(*v1alpha1.NodeProxy)) && !beingRemoved(e.ObjectNew.(*v1alpha1.NodeProxy))
		},
		DeleteFunc: removalEnded,
	}
}

// removalEnded reports whether a NodeProxy has gone that was being removed. If
// that was cut short, what was rendered is still there, and changes were not
// followed meanwhile.
func removalEnded(e event.DeleteEvent) bool { return beingRemoved(e.Object.(*v1alpha1.NodeProxy)) }

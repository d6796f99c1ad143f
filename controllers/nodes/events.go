package nodes

import (
	"cmp"
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// servicesOn returns the Services that have a slice which names a node, with all their slices.
func servicesOn(ctx context.Context, c client.Reader, node string) ([]render.ServiceSlices, error) {
	naming, err := objects.ListSlices(ctx, c, client.MatchingFields{objects.IndexSlicesByNode: node})
	if err != nil {
		return nil, err
	}
	seen := map[types.NamespacedName]bool{}
	var out []render.ServiceSlices
	for _, slice := range naming {
		svc, ok := render.ServiceOf(slice)
		if !ok || seen[svc] {
			continue
		}
		seen[svc] = true
		all, err := objects.SlicesOf(ctx, c, svc)
		if err != nil {
			return nil, err
		}
		service := &corev1.Service{} // empty if there is none
		if _, err := objects.Get(ctx, c, svc, service); err != nil {
			return nil, err
		}
		out = append(out, render.ServiceSlices{Service: svc, Slices: all, Local: render.HasPolicyLocal(service)})
	}
	return out, nil
}

// affectedNodes enqueues the nodes that a change of an EndpointSlice or a Service concerns.
type affectedNodes struct {
	reader client.Reader
	pace   *enqueuePace
}

// bySlice enqueues exactly the nodes whose local endpoints an event of a slice may have changed.
func (h affectedNodes) bySlice() handler.Funcs {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q watches.Queue) {
			slice := e.Object.(*discoveryv1.EndpointSlice)
			if e.IsInInitialList { // every slice is in it, so its own nodes are enough
				enqueue(q, h.pace.known(ctx, render.NodesNamed(slice)))
				return
			}
			h.enqueue(ctx, q, nil, slice)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q watches.Queue) {
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
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q watches.Queue) {
			h.enqueue(ctx, q, e.Object.(*discoveryv1.EndpointSlice), nil)
		},
	}
}

// byPolicy enqueues the nodes with endpoints of a Service whose traffic policies change to or from
// Local: that decides what is left out.
func (h affectedNodes) byPolicy() handler.Funcs {
	enqueue := func(ctx context.Context, svc *corev1.Service, q watches.Queue) {
		all, err := objects.SlicesOf(ctx, h.reader, client.ObjectKeyFromObject(svc))
		if err != nil { // only a cache that has stopped fails
			log.FromContext(ctx).Error(err, "The nodes of a Service are not rendered", "service", client.ObjectKeyFromObject(svc))
			return
		}
		for _, slice := range all {
			h.pace.enqueue(ctx, q, svc.Namespace, render.NodesNamed(slice))
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q watches.Queue) {
			if svc := e.Object.(*corev1.Service); !e.IsInInitialList && render.HasPolicyLocal(svc) {
				enqueue(ctx, svc, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q watches.Queue) {
			if svc := e.ObjectNew.(*corev1.Service); render.HasPolicyLocal(svc) != render.HasPolicyLocal(e.ObjectOld.(*corev1.Service)) {
				enqueue(ctx, svc, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q watches.Queue) {
			if svc := e.Object.(*corev1.Service); render.HasPolicyLocal(svc) {
				enqueue(ctx, svc, q)
			}
		},
	}
}

// enqueue compares a slice of one Service before and after; nil: it does not exist.
func (h affectedNodes) enqueue(ctx context.Context, q watches.Queue, before, after *discoveryv1.EndpointSlice) {
	slice := cmp.Or(before, after)
	svc, ok := render.ServiceOf(slice)
	if !ok {
		return
	}
	all, err := objects.SlicesOf(ctx, h.reader, svc)
	if err != nil { // only a cache that has stopped fails; better too many than too few
		log.FromContext(ctx).Error(err, "All nodes of the slice are rendered", "service", svc)
		for _, s := range []*discoveryv1.EndpointSlice{before, after} {
			if s != nil {
				enqueue(q, h.pace.known(ctx, render.NodesNamed(s)))
			}
		}
		return
	}
	others := slices.DeleteFunc(all, func(s *discoveryv1.EndpointSlice) bool { return s.Name == slice.Name })
	h.pace.enqueue(ctx, q, svc.Namespace, render.NodesAffected(before, after, others))
}

func enqueue(q watches.Queue, nodes []string) {
	for _, n := range nodes {
		q.Add(nodeRequest(n))
	}
}

// everyNode returns every Node and every node that has rules.
func (h affectedNodes) everyNode(ctx context.Context, _ client.Object) []reconcile.Request {
	var nodes corev1.NodeList
	var rules v1alpha1.NodeProxyRulesList
	for _, list := range []client.ObjectList{&nodes, &rules} {
		if err := h.reader.List(ctx, list); err != nil {
			log.FromContext(ctx).Error(err, "Nodes and their rules could not be listed after NodeProxy changed")
			return nil
		}
	}
	out := make([]reconcile.Request, 0, len(nodes.Items)+len(rules.Items))
	for i := range nodes.Items {
		out = append(out, nodeRequest(nodes.Items[i].Name))
	}
	for i := range rules.Items { // the queue takes each name once
		out = append(out, nodeRequest(rules.Items[i].Name))
	}
	return out
}

// nodesWithoutRules returns the Linux Nodes without rules: their settings may have become valid.
func (h affectedNodes) nodesWithoutRules(ctx context.Context, _ client.Object) []reconcile.Request {
	var nodes corev1.NodeList
	if err := h.reader.List(ctx, &nodes); err != nil {
		log.FromContext(ctx).Error(err, "Nodes could not be listed after a policy changed")
		return nil
	}
	var out []reconcile.Request
	for i := range nodes.Items {
		key := types.NamespacedName{Name: nodes.Items[i].Name}
		if found, err := objects.Get(ctx, h.reader, key, &v1alpha1.NodeProxyRules{}); err == nil && !found && render.Linux(&nodes.Items[i]) {
			out = append(out, reconcile.Request{NamespacedName: key})
		}
	}
	return out
}

// nodeFactsChanged passes updates of a Node that change what is rendered; heartbeats do not.
func nodeFactsChanged() predicate.Predicate {
	return watches.Updated(func(before, after *corev1.Node) bool {
		return render.Linux(before) != render.Linux(after) ||
			!equality.Semantic.DeepEqual(render.NodeFacts(before), render.NodeFacts(after))
	})
}

// notStatusOnly keeps an agent's report from rendering its node again: the controller only corrects
// spec and annotations of rules.
func notStatusOnly() predicate.Predicate {
	return watches.Updated(func(before, after *v1alpha1.NodeProxyRules) bool {
		return before.Generation != after.Generation || !maps.Equal(before.Annotations, after.Annotations)
	})
}

package nodes

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// affectedNodes enqueues the nodes that a change of an EndpointSlice or a Service concerns.
type affectedNodes struct {
	reader  client.Reader
	pace    *enqueuePace
	limits  *overLimits
	leftOut *LeftOut
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
	return watches.Versions(func(ctx context.Context, q watches.Queue, v []client.Object) {
		svc := v[len(v)-1].(*corev1.Service)
		if len(v) == 1 { // created or deleted
			h.leftOut.Reported(client.ObjectKeyFromObject(svc), false)
		}
		was := len(v) > 1 && render.HasPolicyLocal(v[0].(*corev1.Service))
		if render.HasPolicyLocal(svc) == was {
			return
		}
		key := client.ObjectKeyFromObject(svc)
		all, over, err := h.limits.slicesOf(ctx, key)
		if err != nil { // only a cache that has stopped fails
			log.FromContext(ctx).Error(err, "The nodes of a Service are not rendered", "service", key)
			return
		}
		if !over { // otherwise its nodes are rendered when that ends
			h.pace.enqueue(ctx, q, svc.Namespace, render.NodesNamed(all...))
		}
	})
}

// enqueue compares a slice of one Service before and after; nil: it does not exist. While the Service
// is over a limit, no endpoint of its other slices is read: nodes retain what they have of it, except
// those that no slice names any more. Once that ends, all its nodes are rendered.
func (h affectedNodes) enqueue(ctx context.Context, q watches.Queue, before, after *discoveryv1.EndpointSlice) {
	slice := cmp.Or(before, after)
	svc, ok := render.ServiceOf(slice)
	if !ok {
		return
	}
	own := slices.DeleteFunc([]*discoveryv1.EndpointSlice{before, after}, func(s *discoveryv1.EndpointSlice) bool { return s == nil })
	change, err := h.limits.change(ctx, svc, slice.Name, after)
	if err != nil { // only a cache that has stopped fails; better too many than too few
		log.FromContext(ctx).Error(err, "All nodes of the slice are rendered", "service", svc)
		enqueue(q, h.pace.known(ctx, render.NodesNamed(own...)))
		return
	}
	var nodes []string
	switch {
	case change.over:
		nodes = render.NodesNamed(own...)
	case change.ended:
		nodes = render.NodesNamed(append(change.others, own...)...)
	default:
		nodes = render.NodesAffected(before, after, change.others)
	}
	h.pace.enqueue(ctx, q, svc.Namespace, nodes)
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

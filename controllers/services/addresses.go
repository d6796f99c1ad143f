package services

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
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

// addressEvents enqueues the Services that name an address which an object gets or loses.
func (r *Reconciler) addressEvents(of func(client.Object) []netip.Addr) handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q watches.Queue) {
			if !e.IsInInitialList { // every Service is enqueued
				r.enqueueNaming(ctx, q, of(e.Object), nil)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q watches.Queue) {
			r.enqueueNaming(ctx, q, of(e.ObjectOld), of(e.ObjectNew))
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q watches.Queue) {
			r.enqueueNaming(ctx, q, of(e.Object), nil)
		},
	}
}

// enqueueNaming enqueues the Services that name an address which is only in one of the lists.
func (r *Reconciler) enqueueNaming(ctx context.Context, q watches.Queue, before, after []netip.Addr) {
	if slices.Equal(before, after) {
		return
	}
	for i, list := range [][]netip.Addr{before, after} {
		other := [][]netip.Addr{after, before}[i]
		for _, a := range list {
			if slices.Contains(other, a) {
				continue
			}
			for _, svc := range r.servicesAt(ctx, a.String()) {
				key := client.ObjectKeyFromObject(&svc)
				r.Memory.note(key, change{addresses: true})
				q.Add(reconcile.Request{NamespacedName: key})
			}
		}
	}
}

// servicesAt returns the Services that name an address, or any.
func (r *Reconciler) servicesAt(ctx context.Context, address string) []corev1.Service {
	var list corev1.ServiceList
	if err := r.Client.List(ctx, &list, client.MatchingFields{objects.IndexServicesByAddress: address}); err != nil {
		log.FromContext(ctx).Error(err, "The Services of an address could not be listed", "address", address)
	}
	return list.Items
}

// servicesWithin returns the Services that name an address in a ServiceCIDR.
func (r *Reconciler) servicesWithin(ctx context.Context, o client.Object) []reconcile.Request {
	ranges := render.NewServiceRanges(o.(*networkingv1.ServiceCIDR).Spec.CIDRs)
	inside := func(a netip.Addr) bool { _, is := ranges.Of(a); return is }
	var out []reconcile.Request
	for _, svc := range r.servicesAt(ctx, objects.AnyAddress) {
		if slices.ContainsFunc(render.OutsideIPs(&svc), inside) {
			key := client.ObjectKeyFromObject(&svc)
			r.Memory.note(key, change{addresses: true})
			out = append(out, reconcile.Request{NamespacedName: key})
		}
	}
	return out
}

// addressesOfNode, addressesOfServers and addressesNamed return the addresses of an object.
func addressesOfNode(o client.Object) []netip.Addr { return render.NodeIPs(o.(*corev1.Node)) }

func addressesOfServers(o client.Object) []netip.Addr {
	return sortedAddresses(render.APIServers([]*discoveryv1.EndpointSlice{o.(*discoveryv1.EndpointSlice)}, nil))
}

func addressesNamed(o client.Object) []netip.Addr {
	return sortedAddresses(render.APIServers(nil, o.(*v1alpha1.NodeProxy)))
}

func sortedAddresses(servers map[netip.Addr][]uint16) []netip.Addr {
	return slices.SortedFunc(maps.Keys(servers), netip.Addr.Compare)
}

// rangesUnknownRetry is how often a Service that waits for the service ranges is rendered again, in
// case nothing else triggers it.
const rangesUnknownRetry = time.Minute

package controllers

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// anyAddress stands in the index of Services by address for each that has one.
const anyAddress = "*"

// outsideIPs are what a Service is found by: its external and load-balancer IPs.
func outsideIPs(o client.Object) []string {
	addresses := render.OutsideIPs(o.(*corev1.Service))
	if len(addresses) == 0 {
		return nil
	}
	keys := []string{anyAddress}
	for _, a := range addresses {
		keys = append(keys, a.String())
	}
	return keys
}

// nodeIPs are what a Node is found by.
func nodeIPs(o client.Object) []string {
	var keys []string
	for _, a := range render.NodeIPs(o.(*corev1.Node)) {
		keys = append(keys, a.String())
	}
	return keys
}

// rangesKnown are the service ranges; false: they are not known yet.
type rangesKnown interface {
	current() (render.ServiceRanges, bool)
}

// surroundings know what the cluster has at the addresses that Services name.
type surroundings struct {
	client client.Reader // reads come from the cache
	ranges rangesKnown
	// apiServers are the URLs that the controller itself was started with.
	apiServers []string
}

// of returns what there is to know for a Service; false: not all of it is known yet.
func (s *surroundings) of(ctx context.Context, svc *corev1.Service) (render.Cluster, bool, error) {
	var out render.Cluster
	if len(svc.Spec.ExternalIPs)+len(svc.Status.LoadBalancer.Ingress) == 0 {
		return out, true, nil
	}
	var known bool
	if out.Ranges, known = s.ranges.current(); !known {
		return out, false, nil
	}
	var err error
	if out.APIServers, err = s.servers(ctx); err != nil {
		return out, false, err
	}
	nodes := map[netip.Addr]bool{}
	for _, a := range render.OutsideIPs(svc) {
		var list corev1.NodeList
		if err := s.client.List(ctx, &list, client.MatchingFields{indexNodesByAddress: a.String()}); err != nil {
			return out, false, fmt.Errorf("list Nodes by address: %w", err)
		}
		nodes[a] = len(list.Items) > 0
	}
	out.OfNode = func(a netip.Addr) bool { return nodes[a] }
	return out, true, nil
}

// servers are the API servers that the controller knows of, ready or not.
func (s *surroundings) servers(ctx context.Context) (map[netip.Addr][]uint16, error) {
	found, err := slicesOf(ctx, s.client, types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: kubernetesService})
	if err != nil {
		return nil, err
	}
	np, err := nodeProxy(ctx, s.client)
	if err != nil {
		return nil, err
	}
	return render.APIServers(found, np, s.apiServers...), nil
}

// addressEvents enqueues the Services that name an address which something gets or loses.
func (r *ServiceReconciler) addressEvents(of func(client.Object) []netip.Addr) handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if !e.IsInInitialList { // every Service comes by
				r.enqueueNaming(ctx, q, of(e.Object), nil)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			r.enqueueNaming(ctx, q, of(e.ObjectOld), of(e.ObjectNew))
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { r.enqueueNaming(ctx, q, of(e.Object), nil) },
	}
}

// enqueueNaming enqueues the Services that name an address which is in one of two lists alone.
func (r *ServiceReconciler) enqueueNaming(ctx context.Context, q queue, before, after []netip.Addr) {
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
				r.memory.note(key, change{addresses: true})
				q.Add(reconcile.Request{NamespacedName: key})
			}
		}
	}
}

// servicesAt are the Services that name an address, or any.
func (r *ServiceReconciler) servicesAt(ctx context.Context, address string) []corev1.Service {
	var list corev1.ServiceList
	if err := r.client.List(ctx, &list, client.MatchingFields{indexServicesByAddress: address}); err != nil {
		log.FromContext(ctx).Error(err, "The Services of an address could not be listed", "address", address)
	}
	return list.Items
}

// servicesWithin are the Services that name an address inside a ServiceCIDR.
func (r *ServiceReconciler) servicesWithin(ctx context.Context, o client.Object) []reconcile.Request {
	ranges := render.NewServiceRanges(o.(*networkingv1.ServiceCIDR).Spec.CIDRs)
	inside := func(a netip.Addr) bool { _, is := ranges.Of(a); return is }
	var out []reconcile.Request
	for _, svc := range r.servicesAt(ctx, anyAddress) {
		if slices.ContainsFunc(render.OutsideIPs(&svc), inside) {
			key := client.ObjectKeyFromObject(&svc)
			r.memory.note(key, change{addresses: true})
			out = append(out, reconcile.Request{NamespacedName: key})
		}
	}
	return out
}

// addressesOfNode, addressesOfServers and addressesNamed are what events are about.
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

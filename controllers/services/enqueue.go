package services

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// requests returns requests for Services.
func requests(keys ...types.NamespacedName) []reconcile.Request {
	out := make([]reconcile.Request, len(keys))
	for i, key := range keys {
		out[i].NamespacedName = key
	}
	return out
}

// changed returns requests for Services, and notes why.
func (r *Reconciler) changed(why change, keys ...types.NamespacedName) []reconcile.Request {
	for _, key := range keys {
		r.Memory.note(key, why)
	}
	return requests(keys...)
}

// list returns the names of Services. It logs errors because handlers of events cannot return them.
func (r *Reconciler) list(ctx context.Context, which string, options ...client.ListOption) []types.NamespacedName {
	var list corev1.ServiceList
	if err := r.Client.List(ctx, &list, options...); err != nil {
		log.FromContext(ctx).Error(err, "The Services that a change concerns could not be listed", "which", which)
	}
	out := make([]types.NamespacedName, len(list.Items))
	for i := range list.Items {
		out[i] = client.ObjectKeyFromObject(&list.Items[i])
	}
	return out
}

func (r *Reconciler) serviceOfSlice(_ context.Context, o client.Object) []reconcile.Request {
	if svc, ok := render.ServiceOf(o.(*discoveryv1.EndpointSlice)); ok {
		return r.changed(change{slice: r.Clock.Now()}, svc)
	}
	return nil
}

func serviceOfRules(_ context.Context, o client.Object) []reconcile.Request {
	return requests(objects.ServiceOfRules(o))
}

// everyService returns every Service and everything that has rules: their Service may have been
// deleted while nothing was reconciled.
func (r *Reconciler) everyService(ctx context.Context, _ client.Object) []reconcile.Request {
	all := sets.New(r.list(ctx, "all")...)
	var rules v1alpha1.ServiceProxyRulesList
	if err := r.Client.List(ctx, &rules); err != nil {
		log.FromContext(ctx).Error(err, "The ServiceProxyRules could not be listed")
	}
	for i := range rules.Items {
		all.Insert(objects.ServiceOfRules(&rules.Items[i]))
	}
	return requests(all.UnsortedList()...)
}

// retainingServices returns the Services that retain their overrides, to decide again when that may have
// changed.
func (r *Reconciler) retainingServices(context.Context, client.Object) []reconcile.Request {
	return requests(r.Overrides.Retaining()...)
}

// servicesWithin returns the Services that name an address in a ServiceCIDR.
func (r *Reconciler) servicesWithin(ctx context.Context, o client.Object) []reconcile.Request {
	ranges := render.NewServiceRanges(o.(*networkingv1.ServiceCIDR).Spec.CIDRs)
	inside := func(a netip.Addr) bool { _, is := ranges.Of(a); return is }
	var list corev1.ServiceList
	if err := r.Client.List(ctx, &list, client.MatchingFields{objects.IndexServicesByAddress: objects.AnyAddress}); err != nil {
		log.FromContext(ctx).Error(err, "The Services with addresses could not be listed")
	}
	var out []reconcile.Request
	for i := range list.Items {
		if slices.ContainsFunc(render.OutsideIPs(&list.Items[i]), inside) {
			out = append(out, r.changed(change{addresses: true}, client.ObjectKeyFromObject(&list.Items[i]))...)
		}
	}
	return out
}

// handle enqueues the requests that changed returns for an event, but not for the initial list:
// every Service is enqueued then.
func handle(changed func(context.Context, []client.Object) []reconcile.Request) handler.Funcs {
	return watches.Versions(func(ctx context.Context, q watches.Queue, v []client.Object) {
		for _, request := range changed(ctx, v) {
			q.Add(request)
		}
	})
}

// addressEvents enqueues the Services that name an address which an object gets or loses.
func (r *Reconciler) addressEvents(of func(client.Object) sets.Set[netip.Addr]) handler.EventHandler {
	return handle(func(ctx context.Context, v []client.Object) (out []reconcile.Request) {
		differing := sets.Set[netip.Addr]{}
		for _, version := range v {
			differing = differing.SymmetricDifference(of(version))
		}
		for _, a := range slices.SortedFunc(maps.Keys(differing), netip.Addr.Compare) {
			named := r.list(ctx, a.String(), client.MatchingFields{objects.IndexServicesByAddress: a.String()})
			out = append(out, r.changed(change{addresses: true}, named...)...)
		}
		return out
	})
}

func addressesOfNode(o client.Object) sets.Set[netip.Addr] {
	return sets.New(render.NodeIPs(o.(*corev1.Node))...)
}

func addressesOfServers(o client.Object) sets.Set[netip.Addr] {
	return sets.KeySet(render.APIServers([]*discoveryv1.EndpointSlice{o.(*discoveryv1.EndpointSlice)}, nil))
}

func addressesNamed(o client.Object) sets.Set[netip.Addr] {
	return sets.KeySet(render.APIServers(nil, o.(*v1alpha1.NodeProxy)))
}

// policyEvents enqueues the Services that a policy selects or selected, and those whose rules name
// it.
func (r *Reconciler) policyEvents() handler.EventHandler {
	events := handle(func(ctx context.Context, v []client.Object) []reconcile.Request {
		old, current := v[0], v[len(v)-1]
		if len(v) > 1 && old.GetGeneration() == current.GetGeneration() && old.GetUID() == current.GetUID() {
			return nil
		}
		r.Overrides.PoliciesChanged() // before the policies are read
		return r.selected(ctx, v)
	})
	created := events.CreateFunc
	events.CreateFunc = func(ctx context.Context, e event.CreateEvent, q watches.Queue) {
		r.Overrides.PoliciesChanged() // in the initial list, too
		created(ctx, e, q)
	}
	return events
}

// selected returns the Services that a version of a policy selects, and those whose rules name it.
func (r *Reconciler) selected(ctx context.Context, v []client.Object) []reconcile.Request {
	var (
		namespaces corev1.NamespaceList
		services   corev1.ServiceList
		rules      v1alpha1.ServiceProxyRulesList
	)
	for _, list := range []client.ObjectList{&namespaces, &services, &rules} {
		if err := r.Client.List(ctx, list); err != nil {
			log.FromContext(ctx).Error(err, "The Services of a policy could not be listed", "policy", v[0].GetName())
		}
	}
	labelsOf := make(map[string]map[string]string, len(namespaces.Items))
	for i := range namespaces.Items {
		labelsOf[namespaces.Items[i].Name] = namespaces.Items[i].Labels
	}
	found := sets.Set[types.NamespacedName]{}
	for _, version := range v {
		policy, _ := policies.ServicePolicyOf(version.(*v1alpha1.ServiceProxyPolicy))
		for i := range services.Items {
			if svc := &services.Items[i]; policy.Selects(labelsOf[svc.Namespace], svc.Labels) {
				found.Insert(client.ObjectKeyFromObject(svc))
			}
		}
	}
	for i := range rules.Items {
		if slices.Contains(rules.Items[i].Spec.Policies, v[0].GetName()) {
			found.Insert(objects.ServiceOfRules(&rules.Items[i]))
		}
	}
	return r.changed(change{policies: true}, slices.SortedFunc(maps.Keys(found), objects.CompareNames)...) // the same everywhere
}

// namespaceEvents enqueues the Services of a Namespace that is created or whose labels change, if
// there are policies.
func (r *Reconciler) namespaceEvents() handler.EventHandler {
	events := handle(func(ctx context.Context, v []client.Object) []reconcile.Request {
		if len(v) > 1 && maps.Equal(v[0].GetLabels(), v[1].GetLabels()) {
			return nil
		}
		if set, err := r.Overrides.CurrentPolicies(ctx); err == nil && len(set.Generations) == 0 {
			return nil
		}
		return r.changed(change{policies: true}, r.list(ctx, v[0].GetName(), client.InNamespace(v[0].GetName()))...)
	})
	events.DeleteFunc = nil // its Services are deleted before
	return events
}

package services

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// policyEvents enqueues the Services that a policy selects or selected, and those whose rules name
// it.
func (r *Reconciler) policyEvents() handler.EventHandler {
	changed := func(ctx context.Context, q watches.Queue, versions ...client.Object) {
		r.Overrides.PoliciesChanged() // before the policies are read
		r.enqueueSelected(ctx, q, versions)
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q watches.Queue) {
			if e.IsInInitialList { // every Service is enqueued
				r.Overrides.PoliciesChanged()
				return
			}
			changed(ctx, q, e.Object)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q watches.Queue) {
			if e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || e.ObjectOld.GetUID() != e.ObjectNew.GetUID() {
				changed(ctx, q, e.ObjectOld, e.ObjectNew)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q watches.Queue) { changed(ctx, q, e.Object) },
	}
}

// enqueueSelected enqueues the Services that a version of a policy selects, and those whose rules
// name it.
func (r *Reconciler) enqueueSelected(ctx context.Context, q watches.Queue, versions []client.Object) {
	found := map[types.NamespacedName]struct{}{}
	var selecting []policies.ServicePolicy
	for _, o := range versions {
		policy, _ := policies.ServicePolicyOf(o.(*v1alpha1.ServiceProxyPolicy))
		selecting = append(selecting, policy)
	}
	if err := r.selectedBy(ctx, selecting, found); err != nil {
		log.FromContext(ctx).Error(err, "The Services of a policy could not be listed", "policy", versions[0].GetName())
	}
	if err := r.shapedBy(ctx, versions[0].GetName(), found); err != nil {
		log.FromContext(ctx).Error(err, "The rules that a policy has shaped could not be listed", "policy", versions[0].GetName())
	}
	for _, key := range slices.SortedFunc(maps.Keys(found), objects.CompareNames) { // the same everywhere
		r.Memory.note(key, change{policies: true})
		q.Add(reconcile.Request{NamespacedName: key})
	}
}

// selectedBy adds the Services that some of the policies select.
func (r *Reconciler) selectedBy(ctx context.Context, selecting []policies.ServicePolicy, found map[types.NamespacedName]struct{}) error {
	var namespaces corev1.NamespaceList
	if err := r.Client.List(ctx, &namespaces); err != nil {
		return err
	}
	labelsOf := make(map[string]map[string]string, len(namespaces.Items))
	for i := range namespaces.Items {
		labelsOf[namespaces.Items[i].Name] = namespaces.Items[i].Labels
	}
	var services corev1.ServiceList
	if err := r.Client.List(ctx, &services); err != nil {
		return err
	}
	for i := range services.Items {
		svc := &services.Items[i]
		if slices.ContainsFunc(selecting, func(p policies.ServicePolicy) bool { return p.Selects(labelsOf[svc.Namespace], svc.Labels) }) {
			found[client.ObjectKeyFromObject(svc)] = struct{}{}
		}
	}
	return nil
}

// shapedBy adds the Services whose rules name a policy.
func (r *Reconciler) shapedBy(ctx context.Context, name string, found map[types.NamespacedName]struct{}) error {
	var rules v1alpha1.ServiceProxyRulesList
	if err := r.Client.List(ctx, &rules); err != nil {
		return err
	}
	for i := range rules.Items {
		if slices.Contains(rules.Items[i].Spec.Policies, name) {
			found[objects.ServiceOfRules(&rules.Items[i])] = struct{}{}
		}
	}
	return nil
}

// namespaceEvents enqueues the Services of a Namespace that is created or whose labels change, if
// there are policies.
func (r *Reconciler) namespaceEvents() handler.EventHandler {
	changed := func(ctx context.Context, name string, q watches.Queue) {
		set, err := r.Overrides.CurrentPolicies(ctx)
		if err == nil && len(set.Generations) == 0 {
			return
		}
		var services corev1.ServiceList
		if err := r.Client.List(ctx, &services, client.InNamespace(name)); err != nil {
			log.FromContext(ctx).Error(err, "The Services of a Namespace could not be listed", "namespace", name)
		}
		for i := range services.Items {
			key := client.ObjectKeyFromObject(&services.Items[i])
			r.Memory.note(key, change{policies: true})
			q.Add(reconcile.Request{NamespacedName: key})
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q watches.Queue) {
			if !e.IsInInitialList { // every Service is enqueued
				changed(ctx, e.Object.GetName(), q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q watches.Queue) {
			if !maps.Equal(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) {
				changed(ctx, e.ObjectNew.GetName(), q)
			}
		},
	}
}

// keptServices returns the Services that keep their overrides, to decide again when that may have
// changed.
func (r *Reconciler) keptServices(context.Context, client.Object) []reconcile.Request {
	keys := r.Overrides.Keeping()
	out := make([]reconcile.Request, len(keys))
	for i, key := range keys {
		out[i].NamespacedName = key
	}
	return out
}

package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
)

// refusedBy is which nodes refuse a Service.
type refusedBy struct {
	node, why string // of the node with the lowest name
	nodes     int
}

// refusals are the Services that nodes name as refused in their status.
type refusals struct {
	client client.Reader // reads come from the cache

	changes atomic.Int64 // of what nodes refuse, seen so far

	mu    sync.Mutex
	upTo  int64                              // of changes; guarded by mu
	known map[types.NamespacedName]refusedBy // guarded by mu; nil: look
}

func newRefusals(c client.Reader) *refusals { return &refusals{client: c} }

// changed notes that nodes refuse something else than before.
func (r *refusals) changed() { r.changes.Add(1) }

// current returns what nodes refuse now, but for those that are gone. It is only read.
func (r *refusals) current(ctx context.Context) (map[types.NamespacedName]refusedBy, error) {
	changes := r.changes.Load() // before the list is read
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known != nil && r.upTo >= changes {
		return r.known, nil
	}
	var list v1alpha1.NodeProxyRulesList
	if err := r.client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list NodeProxyRules: %w", err)
	}
	known := map[types.NamespacedName]refusedBy{}
	for i := range list.Items {
		rules := &list.Items[i]
		for key, why := range refusedOn(rules) {
			by := known[key]
			by.nodes++
			if by.node == "" || rules.Name < by.node {
				by.node, by.why = rules.Name, why
			}
			known[key] = by
		}
	}
	r.known, r.upTo = known, changes
	return known, nil
}

// refusedOn are the Services that a node names as refused, with the reason, unless it is
// gone.
func refusedOn(rules *v1alpha1.NodeProxyRules) map[types.NamespacedName]string {
	if absent(rules) || rules.Status.Refused == nil {
		return nil
	}
	out := map[types.NamespacedName]string{}
	for _, example := range rules.Status.Refused.Examples {
		service, why, _ := strings.Cut(example, ": ")
		if namespace, name, found := strings.Cut(service, "/"); found {
			out[types.NamespacedName{Namespace: namespace, Name: name}] = why
		}
	}
	return out
}

// refusalsChanged lets pass what changes the Services that nodes refuse.
func refusalsChanged() predicate.Predicate {
	any := func(o client.Object) bool { return len(refusedOn(o.(*v1alpha1.NodeProxyRules))) > 0 }
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return any(e.Object) },
		DeleteFunc: func(e event.DeleteEvent) bool { return any(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld.(*v1alpha1.NodeProxyRules), e.ObjectNew.(*v1alpha1.NodeProxyRules)
			return !equality.Semantic.DeepEqual(refusedOn(before), refusedOn(after))
		},
	}
}

// serviceStop is why the change by a policy has stopped.
type serviceStop struct {
	service types.NamespacedName
	refusedBy
}

// stopOf tells by which Service the change by a policy has stopped: the lowest of those
// that nodes refuse as it has made them. Nil: it has not.
func (o *overrides) stopOf(ctx context.Context, refused map[types.NamespacedName]refusedBy, cause v1alpha1.Cause) *serviceStop {
	var stop *serviceStop
	for key, by := range refused {
		if stop != nil && comparedNames(stop.service, key) <= 0 {
			continue
		}
		if slices.Contains(o.causesOf(ctx, key), cause) {
			stop = &serviceStop{key, by}
		}
	}
	return stop
}

// causesOf are those that are held to account for what a Service has of its policies.
func (o *overrides) causesOf(ctx context.Context, key types.NamespacedName) []v1alpha1.Cause {
	stored := &v1alpha1.ServiceProxyRules{}
	found, err := get(ctx, o.client, client.ObjectKey{Name: rulesName(key)}, stored)
	if err != nil || !found { // the cache does not fail
		return nil
	}
	grant := policies.ReadOverrides(stored.Annotations[v1alpha1.AnnotationOverrides])
	if grant == nil {
		return nil
	}
	return grant.By
}

func comparedNames(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }

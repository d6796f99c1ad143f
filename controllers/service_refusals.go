package controllers

import (
	"context"
	"encoding/json"
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
// gone. Those that lack but what another Service has do not count.
func refusedOn(rules *v1alpha1.NodeProxyRules) map[types.NamespacedName]string {
	if absent(rules) || rules.Status.Refused == nil {
		return nil
	}
	out := map[types.NamespacedName]string{}
	for _, example := range rules.Status.Refused.Examples {
		service, why, _ := strings.Cut(example, ": ")
		if strings.Contains(why, v1alpha1.ServedForAnother) {
			continue
		}
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

// haltOf tells for whom the change by a policy has halted, by the Services that nodes
// refuse as it has made them.
func (o *overrides) haltOf(ctx context.Context, refused map[types.NamespacedName]refusedBy, cause v1alpha1.Cause) policies.Halt {
	var changes []policies.RefusedChange
	for key := range refused {
		if grant := o.grantOf(ctx, key); grant != nil && slices.Contains(grant.By, cause) {
			changes = append(changes, policies.RefusedChange{Namespace: key.Namespace, Changed: grant.Changed})
			if halt := policies.HaltOf(changes); halt.All {
				return halt
			}
		}
	}
	return policies.HaltOf(changes)
}

// grantOf is what a Service has of its policies; nil: nothing, or what makes no sense.
func (o *overrides) grantOf(ctx context.Context, key types.NamespacedName) *v1alpha1.OverridesGrant {
	stored := &v1alpha1.ServiceProxyRules{}
	found, err := get(ctx, o.client, client.ObjectKey{Name: rulesName(key)}, stored)
	if err != nil || !found { // the cache does not fail
		return nil
	}
	return policies.ReadOverrides(stored.Annotations[v1alpha1.AnnotationOverrides])
}

// changedToo is the annotation of rules that change because the Service itself does: it
// says so, unless nodes refuse the Service as it was.
func (o *overrides) changedToo(ctx context.Context, key types.NamespacedName, annotation string) (string, error) {
	grant := policies.ReadOverrides(annotation)
	if grant == nil || len(grant.By) == 0 || grant.Changed {
		return annotation, nil
	}
	refused, err := o.refusals.current(ctx)
	if err != nil {
		return "", err
	}
	if _, already := refused[key]; already {
		return annotation, nil
	}
	grant.Changed = true
	return encoded(grant)
}

func encoded(grant *v1alpha1.OverridesGrant) (string, error) {
	text, err := json.Marshal(grant)
	if err != nil {
		return "", fmt.Errorf("encode overrides: %w", err)
	}
	return string(text), nil
}

func comparedNames(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }

package overrides

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// Rejection describes which nodes reject a Service.
type Rejection struct {
	Node, Why string // of the node with the lowest name
	Nodes     int
}

// String names the nodes and the reason.
func (r Rejection) String() string {
	nodes := "node " + r.Node + " rejects it"
	if r.Nodes > 1 {
		nodes = fmt.Sprintf("%d nodes reject it, such as %s", r.Nodes, r.Node)
	}
	if r.Why == "" {
		return nodes
	}
	return nodes + ": " + r.Why
}

// Rejected returns the Services that nodes reject now, except for absent nodes. The result is read-only.
func (o *Overrides) Rejected(ctx context.Context) (map[types.NamespacedName]Rejection, error) {
	return o.rejections.current(func(int64) (map[types.NamespacedName]Rejection, error) {
		var list v1alpha1.NodeProxyRulesList
		if err := o.client.List(ctx, &list); err != nil {
			return nil, fmt.Errorf("list NodeProxyRules: %w", err)
		}
		all := map[types.NamespacedName]Rejection{}
		for i := range list.Items {
			rules := &list.Items[i]
			for key, why := range rejectedOn(rules) {
				by := all[key]
				by.Nodes++
				if by.Node == "" || rules.Name < by.Node {
					by.Node, by.Why = rules.Name, why
				}
				all[key] = by
			}
		}
		return all, nil
	})
}

// rejectedOn returns the Services that a node rejects, with the reasons, unless the Node is absent. A
// Service that only lacks what another Service has does not count.
func rejectedOn(rules *v1alpha1.NodeProxyRules) map[types.NamespacedName]string {
	if reports.Absent(rules) || rules.Status.Rejected == nil {
		return nil
	}
	out := map[types.NamespacedName]string{}
	for _, example := range rules.Status.Rejected.Examples {
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

// RejectionsChanged passes changes of the Services that nodes reject.
func RejectionsChanged() predicate.Predicate {
	out := predicate.NewPredicateFuncs(func(o client.Object) bool { return len(rejectedOn(o.(*v1alpha1.NodeProxyRules))) > 0 })
	out.UpdateFunc = watches.Changed(func(rules *v1alpha1.NodeProxyRules) []any { return []any{rejectedOn(rules)} }).UpdateFunc
	return out
}

// haltOf decides for which Services the change of a policy has halted, because nodes reject some that
// it has changed.
func (o *Overrides) haltOf(ctx context.Context, rejected map[types.NamespacedName]Rejection, cause v1alpha1.Cause) policies.Halt {
	var changes []policies.RejectedChange
	for key := range rejected {
		if grant := o.GrantOf(ctx, key); grant != nil && slices.Contains(grant.By, cause) {
			changes = append(changes, policies.RejectedChange{Namespace: key.Namespace, Changed: grant.Changed})
			if halt := policies.HaltOf(changes); halt.All {
				return halt
			}
		}
	}
	return policies.HaltOf(changes)
}

// GrantOf returns the overrides that a Service has; nil: none, or they are invalid.
func (o *Overrides) GrantOf(ctx context.Context, key types.NamespacedName) *v1alpha1.OverridesGrant {
	stored, err := objects.Find[v1alpha1.ServiceProxyRules](ctx, o.client, client.ObjectKey{Name: objects.RulesName(key)})
	if err != nil || stored == nil { // the cache does not fail
		return nil
	}
	return policies.ReadOverrides(stored.Annotations[v1alpha1.AnnotationOverrides])
}

// ChangedToo returns the annotation of rules that change because the Service itself does. It records
// that, unless nodes reject the Service already.
func (o *Overrides) ChangedToo(ctx context.Context, key types.NamespacedName, annotation string) (string, error) {
	grant := policies.ReadOverrides(annotation)
	if grant == nil || len(grant.By) == 0 || grant.Changed {
		return annotation, nil
	}
	rejected, err := o.Rejected(ctx)
	if err != nil {
		return "", err
	}
	if _, already := rejected[key]; already {
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

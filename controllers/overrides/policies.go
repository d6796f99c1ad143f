package overrides

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
)

// PolicySet is an immutable snapshot of the policies.
type PolicySet struct {
	changes     int64              // of the policies that it includes
	services    *policies.Services // the valid ones
	Generations map[string]int64   // of all, by name
	Priorities  map[string]int32   // of all, by name
	Invalid     []InvalidPolicy
}

// InvalidPolicy is a policy that is not used: what it selects, if that can be determined, retains its
// overrides.
type InvalidPolicy struct {
	policies.ServicePolicy
	Why field.ErrorList
}

// CurrentPolicies returns the current policies.
func (o *Overrides) CurrentPolicies(ctx context.Context) (*PolicySet, error) {
	return o.policies.current(func(changes int64) (*PolicySet, error) { return o.readPolicies(ctx, changes) })
}

func (o *Overrides) readPolicies(ctx context.Context, changes int64) (*PolicySet, error) {
	var list v1alpha1.ServiceProxyPolicyList
	if err := o.client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list ServiceProxyPolicies: %w", err)
	}
	set := &PolicySet{changes: changes, Generations: map[string]int64{}, Priorities: map[string]int32{}}
	var valid []policies.ServicePolicy
	for i := range list.Items {
		policy, why := policies.ServicePolicyOf(&list.Items[i])
		set.Generations[policy.Name] = list.Items[i].Generation
		set.Priorities[policy.Name] = policy.Priority
		if len(why) > 0 {
			set.Invalid = append(set.Invalid, InvalidPolicy{policy, why})
		} else {
			valid = append(valid, policy)
		}
	}
	set.services = policies.NewServices(valid)
	return set, nil
}

// Known is what is known about one Service. It is cached until its policies, its labels or its
// annotation change.
type Known struct {
	Desired *policies.ServiceResolution // what the policies result in
	Invalid []string                    // the policies that select the Service but are not used
	// Both are for these versions of the policies, the Service and its Namespace.
	changes            int64
	service, namespace string
	// grant is parsed from text, the annotation. Nil: it is missing or invalid.
	grant *v1alpha1.OverridesGrant
	text  string
	// granted: the grant is what the policies result in.
	granted bool
}

// know returns what is known about a Service, by the policies of a set; nil if its Namespace is not
// known yet. The result is read-only.
func (o *Overrides) know(ctx context.Context, set *PolicySet, svc *corev1.Service, stored *v1alpha1.ServiceProxyRules) (*Known, error) {
	namespace, err := objects.Find[corev1.Namespace](ctx, o.client, client.ObjectKey{Name: svc.Namespace})
	if err != nil || namespace == nil {
		return nil, err
	}
	text := cmp.Or(stored, &v1alpha1.ServiceProxyRules{}).Annotations[v1alpha1.AnnotationOverrides]
	key := client.ObjectKeyFromObject(svc)
	o.mu.Lock()
	known := o.services[key]
	o.mu.Unlock()
	resolved := known != nil && known.changes == set.changes && known.service == svc.ResourceVersion && known.namespace == namespace.ResourceVersion
	if resolved && known.text == text {
		return known, nil
	}
	next := &Known{changes: set.changes, service: svc.ResourceVersion, namespace: namespace.ResourceVersion, text: text}
	if resolved {
		next.Desired, next.Invalid = known.Desired, known.Invalid
	} else {
		next.Desired = set.services.Resolve(namespace.Labels, svc.Labels)
		for i := range set.Invalid {
			if set.Invalid[i].Selects(namespace.Labels, svc.Labels) {
				next.Invalid = append(next.Invalid, set.Invalid[i].Name)
			}
		}
	}
	if known != nil && known.text == text {
		next.grant = known.grant
	} else {
		next.grant = policies.ReadOverrides(text)
	}
	next.granted = next.grant != nil && next.Desired.Granted(next.grant)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.services[key] = next
	return next, nil
}

// snapshot caches what follows from lists until these change.
type snapshot[T any] struct {
	changes atomic.Int64 // seen so far

	mu    sync.Mutex
	upTo  int64 // of changes; guarded by mu
	value *T    // guarded by mu; nil: not read yet
}

// current returns the current value, which is only read if the lists have changed since the last
// call. read gets how many changes the value includes.
func (s *snapshot[T]) current(read func(changes int64) (T, error)) (T, error) {
	changes := s.changes.Load() // before the lists are read
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.value == nil || s.upTo < changes {
		value, err := read(changes)
		if err != nil {
			return value, err
		}
		s.value, s.upTo = &value, changes
	}
	return *s.value, nil
}

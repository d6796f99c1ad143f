package overrides

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
)

// allPolicies caches all ServiceProxyPolicies, prepared to be resolved, and what they result in for
// each Service until either changes.
type allPolicies struct {
	client client.Reader // reads come from the cache

	set snapshot[*PolicySet]

	mu       sync.Mutex
	services map[types.NamespacedName]*Known // guarded by mu
}

// PolicySet is an immutable snapshot of the policies.
type PolicySet struct {
	changes     int64
	services    *policies.Services // those that make sense
	Generations map[string]int64   // of all, by name
	Priorities  map[string]int32   // of all, by name
	Invalid     []InvalidPolicy
}

// InvalidPolicy is a policy that is not used: what it selects, if that can be determined, keeps its
// overrides.
type InvalidPolicy struct {
	policies.ServicePolicy
	Why field.ErrorList
}

func newPolicies(c client.Reader) *allPolicies {
	return &allPolicies{client: c, services: map[types.NamespacedName]*Known{}}
}

// current returns the current policies.
func (p *allPolicies) current(ctx context.Context) (*PolicySet, error) {
	return p.set.current(func(changes int64) (*PolicySet, error) { return p.read(ctx, changes) })
}

func (p *allPolicies) read(ctx context.Context, changes int64) (*PolicySet, error) {
	var list v1alpha1.ServiceProxyPolicyList
	if err := p.client.List(ctx, &list); err != nil {
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

// Known is what is known about one Service.
type Known struct {
	// Desired is what the policies result in, and Invalid are the names of those that select the
	// Service but are not used, for these versions of the objects.
	Desired            *policies.ServiceResolution
	Invalid            []string
	changes            int64
	service, namespace string
	// grant is parsed from text, the annotation. Nil: it cannot be used.
	grant *v1alpha1.OverridesGrant
	text  string
	// granted: the grant is what the policies result in.
	granted bool
}

// of returns what is known about a Service, by the policies of a set; nil if its Namespace is not
// known yet. The result is read-only.
func (p *allPolicies) of(ctx context.Context, set *PolicySet, svc *corev1.Service, stored *v1alpha1.ServiceProxyRules) (*Known, error) {
	namespace := &corev1.Namespace{}
	found, err := objects.Get(ctx, p.client, client.ObjectKey{Name: svc.Namespace}, namespace)
	if err != nil || !found {
		return nil, err
	}
	text := ""
	if stored != nil {
		text = stored.Annotations[v1alpha1.AnnotationOverrides]
	}
	key := client.ObjectKeyFromObject(svc)
	p.mu.Lock()
	known := p.services[key]
	p.mu.Unlock()
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
	p.mu.Lock()
	defer p.mu.Unlock()
	p.services[key] = next
	return next, nil
}

// forget drops a Service that is gone or no longer eligible.
func (p *allPolicies) forget(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.services, key)
}

// newTerm forgets all Services.
func (p *allPolicies) newTerm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.services)
}

package controllers

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
)

// servicePolicies are all ServiceProxyPolicies, made ready to resolve with, and what
// they make of each Service, kept as long as neither changes.
type servicePolicies struct {
	client client.Reader // reads come from the cache

	changes atomic.Int64 // of policies, seen so far

	mu       sync.Mutex
	set      *servicePolicySet                       // guarded by mu
	services map[types.NamespacedName]*knownOverride // guarded by mu
}

// servicePolicySet are the policies at one time. It does not change.
type servicePolicySet struct {
	changes     int64
	services    *policies.Services // those that make sense
	generations map[string]int64   // of all, by name
	priorities  map[string]int32   // of all, by name
	invalid     []invalidServicePolicy
}

// invalidServicePolicy is one that is not used: what it selects, as far as that can be
// told, keeps what it has.
type invalidServicePolicy struct {
	policies.ServicePolicy
	why field.ErrorList
}

func newServicePolicies(c client.Reader) *servicePolicies {
	return &servicePolicies{client: c, services: map[types.NamespacedName]*knownOverride{}}
}

// changed notes that there are other policies than before.
func (p *servicePolicies) changed() { p.changes.Add(1) }

// current returns the policies as they are now.
func (p *servicePolicies) current(ctx context.Context) (*servicePolicySet, error) {
	changes := p.changes.Load() // before the list is read
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set != nil && p.set.changes >= changes {
		return p.set, nil
	}
	var list v1alpha1.ServiceProxyPolicyList
	if err := p.client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list ServiceProxyPolicies: %w", err)
	}
	set := &servicePolicySet{changes: changes, generations: map[string]int64{}, priorities: map[string]int32{}}
	var valid []policies.ServicePolicy
	for i := range list.Items {
		policy, why := policies.ServicePolicyOf(&list.Items[i])
		set.generations[policy.Name] = list.Items[i].Generation
		set.priorities[policy.Name] = policy.Priority
		if len(why) > 0 {
			set.invalid = append(set.invalid, invalidServicePolicy{policy, why})
		} else {
			valid = append(valid, policy)
		}
	}
	set.services = policies.NewServices(valid)
	p.set = set
	return set, nil
}

// knownOverride is what is known of one Service.
type knownOverride struct {
	// wanted is what the policies make of it, and invalid are the names of those that
	// select it but are not used. They are for these versions of the objects.
	wanted             *policies.ServiceResolution
	invalid            []string
	changes            int64
	service, namespace string
	// grant is what text, in the annotation, says. Nil: nothing that can be used.
	grant *v1alpha1.OverridesGrant
	text  string
	// granted: that is what the policies make of it.
	granted bool
}

// of returns what is known of a Service, by the policies of a set; nil where its
// Namespace is not known yet. Whoever gets it only reads it.
func (p *servicePolicies) of(ctx context.Context, set *servicePolicySet, svc *corev1.Service, stored *v1alpha1.ServiceProxyRules) (*knownOverride, error) {
	namespace := &corev1.Namespace{}
	found, err := get(ctx, p.client, client.ObjectKey{Name: svc.Namespace}, namespace)
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
	next := &knownOverride{changes: set.changes, service: svc.ResourceVersion, namespace: namespace.ResourceVersion, text: text}
	if resolved {
		next.wanted, next.invalid = known.wanted, known.invalid
	} else {
		next.wanted = set.services.Resolve(namespace.Labels, svc.Labels)
		for i := range set.invalid {
			if set.invalid[i].Selects(namespace.Labels, svc.Labels) {
				next.invalid = append(next.invalid, set.invalid[i].Name)
			}
		}
	}
	if known != nil && known.text == text {
		next.grant = known.grant
	} else {
		next.grant = policies.ReadOverrides(text)
	}
	next.granted = next.grant != nil && next.wanted.Granted(next.grant)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.services[key] = next
	return next, nil
}

// forget drops a Service that is gone or no longer eligible.
func (p *servicePolicies) forget(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.services, key)
}

// newTerm forgets all Services.
func (p *servicePolicies) newTerm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.services)
}

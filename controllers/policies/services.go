package policies

import (
	"cmp"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// wholeOverrides are the overrides of more than one field that are set as a whole.
func wholeOverrides() map[string]bool { return map[string]bool{"sessionAffinity": true} }

// ServicePolicy is the part of a policy for Services that decides how they are proxied.
type ServicePolicy struct {
	Name     string
	Priority int32
	// Namespaces selects Namespaces, and Services Services in these, by their labels.
	Namespaces, Services labels.Selector
	// Overrides are those that the policy sets; nil fields are left to others.
	Overrides *v1alpha1.ServiceOverrides
}

// Selects reports whether the policy selects a Service with these labels in a Namespace with those.
// A policy with an invalid selector selects none.
func (p *ServicePolicy) Selects(namespaceLabels, serviceLabels map[string]string) bool {
	return p.Services != nil && p.Namespaces != nil &&
		p.Services.Matches(labels.Set(serviceLabels)) && p.Namespaces.Matches(labels.Set(namespaceLabels))
}

// Keeps reports whether a Service with these labels in a Namespace with those, which policies of
// these names have shaped, keeps its overrides while the policy is invalid.
func (p *ServicePolicy) Keeps(namespaceLabels, serviceLabels map[string]string, shaped []string) bool {
	return slices.Contains(shaped, p.Name) || p.Selects(namespaceLabels, serviceLabels)
}

// ServiceResolution is what policies result in for some Services.
type ServiceResolution struct {
	// Overrides are those that win; nil fields are the Service's own.
	Overrides v1alpha1.ServiceOverrides
	// Matching are the policies that select the Services, and Policies those of them that set a
	// field, each the strongest first.
	Matching, Policies []string
	// Owners are the names of the policies that set each field, by its name in JSON, such as
	// "nodePorts".
	Owners map[string]string
	// Overridden are, for each policy, the fields that it would set differently, with the name of
	// the one that sets them.
	Overridden map[string]map[string]string
}

// Services resolves overrides of Services. Services that the same policies select share one
// resolution. It is for concurrent use.
type Services struct {
	policies []ServicePolicy // the strongest first

	mu    sync.Mutex
	known map[string]*ServiceResolution // guarded by mu
}

// NewServices takes the policies in any order, and retains them.
func NewServices(policies []ServicePolicy) *Services {
	sorted := slices.SortedFunc(slices.Values(policies), func(a, b ServicePolicy) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Name, b.Name))
	})
	return &Services{policies: sorted, known: map[string]*ServiceResolution{}}
}

// Resolve returns the overrides of a Service with these labels in a Namespace with those. The
// result is read-only.
func (s *Services) Resolve(namespaceLabels, serviceLabels map[string]string) *ServiceResolution {
	matching := make([]byte, (len(s.policies)+7)/8) // a bit for each policy
	for i := range s.policies {
		if s.policies[i].Selects(namespaceLabels, serviceLabels) {
			matching[i/8] |= 1 << (i % 8)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, found := s.known[string(matching)]; found {
		return r
	}
	r := s.merge(matching)
	s.known[string(matching)] = r
	return r
}

// merge merges the policies whose bits are set.
func (s *Services) merge(matching []byte) *ServiceResolution {
	r := &ServiceResolution{Owners: map[string]string{}, Overridden: map[string]map[string]string{}}
	all := &layers{whole: wholeOverrides(), owners: r.Owners}
	for i := range s.policies {
		p := &s.policies[i]
		if matching[i/8]&(1<<(i%8)) == 0 {
			continue
		}
		r.Matching = append(r.Matching, p.Name)
		if p.Overrides == nil {
			continue
		}
		before := len(all.owners)
		if lost := all.add(p.Name, &r.Overrides, p.Overrides); len(lost) > 0 {
			r.Overridden[p.Name] = lost
		}
		if len(all.owners) > before {
			r.Policies = append(r.Policies, p.Name)
		}
	}
	return r
}

// DifferingOverrides returns the names in JSON of the fields in which overrides differ.
func DifferingOverrides(a, b *v1alpha1.ServiceOverrides) []string {
	return differing(a, b, wholeOverrides())
}

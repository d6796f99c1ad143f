package desired

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// SetRules takes the own NodeProxyRules. One that is not accepted is kept
// beside the last accepted one, which stays in force.
func (s *Store) SetRules(object *v1alpha1.NodeProxyRules) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	known := s.rules
	if known == nil {
		if s.conflictFound = formerConflict(object); !s.conflictFound {
			s.ran = object.Status.Mode
		}
		s.rememberRemoval(object)
	}
	s.rules, s.rulesExists, s.rulesListed = object, true, true
	if known != nil && known.UID == object.UID && known.Generation == object.Generation && object.Generation != 0 {
		return // only its status or metadata has changed
	}
	former := s.refusal
	s.refusal = accept(object, s.Formats)
	if s.refusal != nil {
		return
	}
	if former != nil { // others may have written to the kernel meanwhile
		s.markFull(now)
	}
	s.restored.Rules = false
	s.adoptRules(object, now)
}

// MissRules notes that the own NodeProxyRules do not exist: everything stays.
func (s *Store) MissRules() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rulesExists, s.rulesListed = false, true
}

// OwnObject returns what the agent itself follows in its own object: the settings
// in force, why the newest state is not accepted, and whether it is gone.
func (s *Store) OwnObject() (settings *v1alpha1.ProxySettings, r *Refusal, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settings, s.refusal, s.rulesListed && !s.rulesExists
}

// adoptRules puts an accepted object in force and marks what it changes. The
// caller holds mu.
func (s *Store) adoptRules(object *v1alpha1.NodeProxyRules, now time.Time) {
	former, audit := s.current, s.inAudit()
	s.current = object
	s.pending = true // its generation, if nothing else
	first := former == nil
	if first || !equality.Semantic.DeepEqual(former.Spec.Settings, object.Spec.Settings) {
		s.settings = v1alpha1.CompleteSettings(&object.Spec.Settings)
		s.markFull(now)
	}
	if audit != s.inAudit() {
		// What was known by comparing tells nothing of what we write, and the other
		// way round. It must not pass for that until there is a turn to begin or end.
		s.forgetKernel(now)
	}
	if first || !slices.Equal(former.Spec.Node.Addresses, object.Spec.Node.Addresses) ||
		!slices.Equal(former.Spec.Node.PodCIDRs, object.Spec.Node.PodCIDRs) {
		s.markFull(now)
	}
	if first || former.Spec.Node.Zone != object.Spec.Node.Zone {
		for name := range s.services {
			s.mark(name, false, now)
		}
	}
	if first || former.Spec.SettingsRevision != object.Spec.SettingsRevision {
		s.pend(now) // to be echoed once a pass has been made
	}
	s.adoptMembers(object.Spec.LocalEndpoints, now)
}

// adoptMembers marks the Services whose members have changed. The caller holds
// mu.
func (s *Store) adoptMembers(list []v1alpha1.ServiceLocalEndpoints, now time.Time) {
	members := combine.Members(list)
	for name, m := range members {
		if !sameMembers(s.members[name], m) {
			s.changes.endpoint(name)
			s.mark(name, false, now)
		}
	}
	for name := range s.members {
		if members[name] == nil {
			s.changes.endpoint(name)
			s.mark(name, false, now)
		}
	}
	s.members = members
}

func sameMembers(a, b *v1alpha1.ServiceLocalEndpoints) bool {
	return a != nil && b != nil && slices.EqualFunc(a.Ports, b.Ports, func(x, y v1alpha1.PortLocalEndpoints) bool {
		return x.Name == y.Name && x.Protocol == y.Protocol && slices.Equal(x.Endpoints, y.Endpoints)
	})
}

// node returns what one family's data plane needs to know of the node. The caller
// holds mu.
func (s *Store) node(family dataplane.Family) dataplane.Node {
	return combine.Facts(&s.current.Spec.Node, s.settings, family)
}

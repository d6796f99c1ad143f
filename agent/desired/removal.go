package desired

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Removal is the end of this node's rules, because the NodeProxy is deleted with removalPolicy
// Cleanup.
type Removal struct {
	// Requested: such a NodeProxy was seen, and since then none that is not being deleted or,
	// before it was done, has another policy.
	Requested bool
	// audit: the NodeProxy asks for Audit; for a node whose own settings are unknown.
	audit bool
	// cleared: it may be done now. Leave is why the kernel is not changed; empty: it is
	// cleaned up.
	cleared bool
	Leave   string
	// Done: it was done, with a human-readable Message. Err is why not yet.
	Done    bool
	Message string
	Err     error
}

// removal is a Removal and what it depends on.
type removal struct {
	Removal
	// proxyListed: the API has shown whether there is a NodeProxy; proxyLive: there is one
	// that is not being deleted.
	proxyListed, proxyLive bool
}

// follow takes the NodeProxy; nil: there is none.
func (r *removal) follow(o *v1alpha1.NodeProxy) {
	r.proxyListed, r.proxyLive = true, o != nil && o.DeletionTimestamp == nil
	switch {
	case o == nil: // what has begun continues
	case r.proxyLive:
		r.Removal = Removal{}
	case o.Spec.RemovalPolicy != nil && *o.Spec.RemovalPolicy == v1alpha1.RemovalCleanup:
		if !r.Requested {
			settings := o.Spec.Settings
			r.Removal = Removal{Requested: true, audit: settings != nil && settings.Enforcement != nil && *settings.Enforcement == v1alpha1.Audit}
		}
	case !r.Done: // the policy was changed; what is removed stays so
		r.Removal = Removal{}
	}
}

// remember continues if an earlier run has removed the rules, by the status as first seen.
func (r *removal) remember(object *v1alpha1.NodeProxyRules) {
	c := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionProgrammed)
	if r.proxyLive || c == nil || c.Reason != v1alpha1.ReasonRemoved {
		return
	}
	r.Requested, r.cleared, r.Done, r.Message = true, true, true, c.Message
}

// clear is Store.ClearRemoval.
func (r *removal) clear(evidence string, free, audit bool) bool {
	if !r.Requested || r.cleared || evidence == "" && !free && !audit {
		return false
	}
	r.cleared = true
	switch {
	case audit:
		r.Leave = auditMessage
	case evidence != "":
		r.Leave = fmt.Sprintf(LeaveMessage, evidence)
	}
	return true
}

// What the status reports of a removal. One that leaves rules is one sentence: what was removed may
// follow.
const (
	RemovedMessage = "The rules of nodeproxy are removed from this node, because the NodeProxy was deleted with removalPolicy Cleanup; sysctls, and the kubelet's chains, stay; nothing is programmed until there is a NodeProxy again"
	auditMessage   = "The rules of this node stay, although the NodeProxy was deleted with removalPolicy Cleanup, because enforcement is Audit, with which the agent writes nothing; to remove rules from before, run nodeproxy-agent cleanup on the node"
	LeaveMessage   = "The rules of this node stay, although the NodeProxy was deleted with removalPolicy Cleanup, because another proxy is active on it (%s) and its rules use the same chains"
)

// SetProxy takes the NodeProxy; nil: there is none.
func (s *Store) SetProxy(o *v1alpha1.NodeProxy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	former := s.removal.Removal
	s.removal.follow(o)
	switch {
	case !former.Requested && s.removal.Requested:
		s.catalog.dropRetained(s.catalog.inventory.number)
	case former.Requested && !s.removal.Requested:
		if former.Done { // what the API has not delivered is outdated; a new one will come
			if !s.own.exists {
				s.own.current, s.restored.Rules = nil, false
			}
			if !s.catalog.inventory.listed {
				s.restored.Services = false
				s.catalog.dropAll()
			}
		}
		s.catalog.inventory.doubt(s.clock.Now()) // what agreed was another list
		s.ledger.waitAnew()
		s.ledger.markFull()
	}
	var inventory *v1alpha1.Inventory
	if o != nil {
		inventory = o.Status.Inventory
	}
	s.catalog.inventory.setDesired(inventory)
	s.catalog.reconcile()
}

// DeleteProxy takes the last state of a NodeProxy that is gone. It may be the first that shows
// the deletion.
func (s *Store) DeleteProxy(o *v1alpha1.NodeProxy) {
	if o.DeletionTimestamp != nil {
		s.SetProxy(o)
	}
	s.SetProxy(nil)
}

// Oriented reports whether the API has shown, since the start, whether rules are to be written
// or removed.
func (s *Store) Oriented() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removal.proxyListed && (s.own.listed || s.restored.Rules)
}

// ClearRemoval reports whether the removal may be done from now on. Beside another proxy, and
// with Audit, the kernel is not changed.
func (s *Store) ClearRemoval(evidence string, free bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removal.clear(evidence, free, s.own.audit() || s.own.settings == nil && s.removal.audit)
}

// Removed takes the outcome of a removal. It returns what the kernel has now: no Service.
func (s *Store) Removed(err error, message string) map[dataplane.Family]*dataplane.Ruleset {
	rulesets := map[dataplane.Family]*dataplane.Ruleset{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removal.Requested { // it may have been canceled meanwhile
		s.removal.Done, s.removal.Message, s.removal.Err = err == nil, message, err
	}
	if s.removal.Done {
		s.actual.applied = Applied{}
	}
	if s.own.current != nil {
		for family := range s.families {
			rulesets[family] = &dataplane.Ruleset{Node: s.own.nodes[family], Full: true}
		}
	}
	s.forgetKernel()
	return rulesets
}

// Due reports whether the sync loop has to do the removal now.
func (r *Removal) Due() bool { return r.Requested && r.cleared && !r.Done }

// CurrentRemoval returns the removal.
func (s *Store) CurrentRemoval() Removal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removal.Removal
}

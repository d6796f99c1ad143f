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
	// Wanted: such a NodeProxy was seen, and since then none that is not being deleted or,
	// before it was done, has another policy.
	Wanted bool
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

// What the status reports of a removal.
const (
	RemovedMessage = "nodeproxy's rules are removed from this node, because the NodeProxy was deleted with removalPolicy Cleanup; sysctls, and the kubelet's chains, stay; nothing is programmed until there is a NodeProxy again"
	auditMessage   = "nothing was removed from this node though the NodeProxy was deleted with removalPolicy Cleanup, because enforcement is Audit, with which the agent writes nothing; to remove rules from before, run nodeproxy-agent cleanup on the node"
	LeaveMessage   = "nothing was removed from this node though the NodeProxy was deleted with removalPolicy Cleanup, because another proxy is active on it (%s) and its rules stand in the same chains"
)

// SetProxy takes the NodeProxy; nil: there is none.
func (s *Store) SetProxy(o *v1alpha1.NodeProxy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removal.proxyListed, s.removal.proxyLive = true, o != nil && o.DeletionTimestamp == nil
	switch {
	case o == nil: // what has begun continues
	case s.removal.proxyLive:
		s.endRemoval()
	case o.Spec.RemovalPolicy != nil && *o.Spec.RemovalPolicy == v1alpha1.RemovalCleanup:
		s.beginRemoval(o)
	case !s.removal.Done: // the policy was changed; what is removed stays so
		s.endRemoval()
	}
	var inventory *v1alpha1.Inventory
	if o != nil {
		inventory = o.Status.Inventory
	}
	s.inventory.want(inventory)
	s.reconcile(s.clock.Now())
}

// DeleteProxy takes the last state of a NodeProxy that is gone. It may be the first that shows
// the deletion.
func (s *Store) DeleteProxy(o *v1alpha1.NodeProxy) {
	if o.DeletionTimestamp != nil {
		s.SetProxy(o)
	}
	s.SetProxy(nil)
}

// beginRemoval begins the removal of all rules. The caller holds mu.
func (s *Store) beginRemoval(o *v1alpha1.NodeProxy) {
	if s.removal.Wanted {
		return
	}
	settings := o.Spec.Settings
	s.removal.Removal = Removal{Wanted: true, audit: settings != nil && settings.Enforcement != nil && *settings.Enforcement == v1alpha1.Audit}
	for _, e := range s.catalog.retained {
		s.drop(e)
	}
}

// endRemoval lets rules be written again. The caller holds mu.
func (s *Store) endRemoval() {
	if !s.removal.Wanted {
		return
	}
	if s.removal.Done && !s.own.exists {
		s.own.current = nil // it is outdated; a new one will come
	}
	s.removal.Removal = Removal{}
	s.inventory.confirmed, s.inventory.unconfirmedSince = false, s.clock.Now() // what agreed was another list
	s.ledger.waitAnew()
	s.ledger.markFull()
}

// rememberRemoval continues if an earlier run of the agent has removed the rules, by the status
// as first seen. The caller holds mu.
func (s *Store) rememberRemoval(object *v1alpha1.NodeProxyRules) {
	c := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionProgrammed)
	if s.removal.proxyLive || c == nil || c.Reason != v1alpha1.ReasonRemoved {
		return
	}
	s.removal.Wanted, s.removal.cleared, s.removal.Done, s.removal.Message = true, true, true, c.Message
}

// Removing reports whether the rules are to be removed, or have been.
func (s *Store) Removing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removal.Wanted
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
func (s *Store) ClearRemoval(sign string, free bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.removal
	audit := s.own.audit() || s.own.settings == nil && r.audit
	if !r.Wanted || r.cleared || sign == "" && !free && !audit {
		return false
	}
	r.cleared = true
	switch {
	case audit:
		r.Leave = auditMessage
	case sign != "":
		r.Leave = fmt.Sprintf(LeaveMessage, sign)
	}
	return true
}

// Removed takes the outcome of a removal. It returns what the kernel has now: no Service.
func (s *Store) Removed(err error, message string) map[dataplane.Family]*dataplane.Ruleset {
	rulesets := map[dataplane.Family]*dataplane.Ruleset{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removal.Wanted { // it may have been canceled meanwhile
		s.removal.Err = err
		s.removal.Done, s.removal.Message = err == nil, message
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
func (r *Removal) Due() bool { return r.Wanted && r.cleared && !r.Done }

// CurrentRemoval returns the removal.
func (s *Store) CurrentRemoval() Removal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removal.Removal
}

package desired

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Removal is the end of this node's rules, because the NodeProxy is deleted with
// removalPolicy Cleanup.
type Removal struct {
	// Wanted: such a NodeProxy has been seen, and since then none that is not being
	// deleted or, before it was done, has another policy.
	Wanted bool
	// audit: the NodeProxy asks for Audit; for a node whose own settings are not
	// known.
	audit bool
	// cleared: it may be done now. leave is why the kernel is not touched; empty:
	// it is cleaned.
	cleared bool
	Leave   string
	// Done: it has been, with message for people. err is why not yet.
	Done    bool
	Message string
	Err     error
}

// What the status says of a removal.
const (
	RemovedMessage = "nodeproxy's rules are removed from this node, because the NodeProxy was deleted with removalPolicy Cleanup; sysctls, and the kubelet's chains, stay; nothing is programmed until there is a NodeProxy again"
	auditMessage   = "nothing was removed from this node though the NodeProxy was deleted with removalPolicy Cleanup, because enforcement is Audit, with which the agent writes nothing; to remove rules from before, run nodeproxy-agent cleanup on the node"
	LeaveMessage   = "nothing was removed from this node though the NodeProxy was deleted with removalPolicy Cleanup, because another proxy is active on it (%s) and its rules stand in the same chains"
)

// SetProxy takes the NodeProxy; nil: there is none.
func (s *Store) SetProxy(o *v1alpha1.NodeProxy) {
	s.followProxy(o)
	var inventory *v1alpha1.Inventory
	if o != nil {
		inventory = o.Status.Inventory
	}
	s.setInventory(inventory)
}

// followProxy begins or ends the removal.
func (s *Store) followProxy(o *v1alpha1.NodeProxy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proxyLive = o != nil && o.DeletionTimestamp == nil
	switch {
	case o == nil: // what has begun goes on
	case s.proxyLive:
		s.endRemoval()
	case o.Spec.RemovalPolicy != nil && *o.Spec.RemovalPolicy == v1alpha1.RemovalCleanup:
		s.beginRemoval(o)
	case !s.removal.Done: // somebody has thought better of it; what is removed stays so
		s.endRemoval()
	}
}

// DeleteProxy takes the last state of a NodeProxy that is gone. It may be the first
// that shows that it was being deleted.
func (s *Store) DeleteProxy(o *v1alpha1.NodeProxy) {
	if o.DeletionTimestamp != nil {
		s.SetProxy(o)
	}
	s.SetProxy(nil)
}

// beginRemoval has the rules be removed. The caller holds mu.
func (s *Store) beginRemoval(o *v1alpha1.NodeProxy) {
	if s.removal.Wanted {
		return
	}
	settings := o.Spec.Settings
	s.removal = Removal{Wanted: true, audit: settings != nil && settings.Enforcement != nil && *settings.Enforcement == v1alpha1.Audit}
	now := s.clock.Now()
	for _, e := range s.held { // for nothing any more
		s.drop(e, now)
	}
}

// endRemoval has rules be written again. The caller holds mu.
func (s *Store) endRemoval() {
	if !s.removal.Wanted {
		return
	}
	if s.removal.Done && !s.rulesExists {
		s.current = nil // of a node as it was long ago; a new one is to come
	}
	s.removal = Removal{}
	now := s.clock.Now()
	s.confirmed, s.unconfirmedSince = false, now // what agreed was another list
	s.waitAnew(now)
	s.markFull(now)
}

// rememberRemoval goes on where an earlier run of the agent has removed the
// rules, by the status as it was first seen. The caller holds mu.
func (s *Store) rememberRemoval(object *v1alpha1.NodeProxyRules) {
	c := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionProgrammed)
	if s.proxyLive || c == nil || c.Reason != v1alpha1.ReasonRemoved {
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

// Oriented reports whether the API has shown, since the start, all that says
// whether rules are to be written or removed.
func (s *Store) Oriented() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proxyListed && (s.rulesListed || s.restored.Rules)
}

// ClearRemoval reports whether the removal may be done from now on. Beside
// another proxy, and with Audit, the kernel is not touched.
func (s *Store) ClearRemoval(sign string, free bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.removal
	audit := s.inAudit() || s.settings == nil && r.audit
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

// DueRemoval returns the removal if the sync loop has to do it now.
func (s *Store) DueRemoval() (Removal, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removal, s.removal.Wanted && s.removal.cleared && !s.removal.Done
}

// Excluded are spec.settings.ipvs.excludeCIDRs, as far as they are known: an agent
// that starts into a removal has applied none.
func (s *Store) Excluded() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settings == nil {
		return nil
	}
	return s.settings.IPVS.ExcludeCIDRs
}

// Removed takes the outcome of a removal. It returns what the kernel holds now:
// of no Service anything.
func (s *Store) Removed(err error, message string) map[dataplane.Family]*dataplane.Ruleset {
	rulesets := map[dataplane.Family]*dataplane.Ruleset{}
	s.mu.Lock()
	if s.removal.Wanted { // it may have been called off meanwhile
		s.removal.Err = err
		s.removal.Done, s.removal.Message = err == nil, message
	}
	if s.removal.Done {
		s.applied = Applied{}
	}
	if s.current != nil {
		for family := range s.families {
			rulesets[family] = &dataplane.Ruleset{Node: s.node(family), Full: true}
		}
	}
	s.mu.Unlock()
	s.Forget()
	return rulesets
}

// EndedRemoval returns the removal as it is once it has ended.
func (s *Store) EndedRemoval() Removal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removal
}

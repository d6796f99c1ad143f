package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// orientPatience is how long an agent that starts waits for what the API shows,
// before it writes: it may have to remove rules, not to write them.
const orientPatience = 5 * time.Second

// removal is the end of this node's rules, because the NodeProxy is deleted with
// removalPolicy Cleanup.
type removal struct {
	// wanted: such a NodeProxy has been seen, and since then none that is not being
	// deleted or, before it was done, has another policy.
	wanted bool
	// audit: the NodeProxy asks for Audit; for a node whose own settings are not
	// known.
	audit bool
	// cleared: it may be done now. leave is why the kernel is not touched; empty:
	// it is cleaned.
	cleared bool
	leave   string
	// done: it has been, with message for people. err is why not yet.
	done    bool
	message string
	err     error
}

const (
	removedMessage = "nodeproxy's rules are removed from this node, because the NodeProxy was deleted with removalPolicy Cleanup; sysctls, and the kubelet's chains, stay; nothing is programmed until there is a NodeProxy again"
	auditMessage   = "nothing was removed from this node though the NodeProxy was deleted with removalPolicy Cleanup, because enforcement is Audit, with which the agent writes nothing; to remove rules from before, run nodeproxy-agent cleanup on the node"
	leaveMessage   = "nothing was removed from this node though the NodeProxy was deleted with removalPolicy Cleanup, because another proxy is active on it (%s) and its rules stand in the same chains"
)

// SetProxy takes the NodeProxy; nil: there is none.
func (s *store) SetProxy(o *v1alpha1.NodeProxy) {
	s.followProxy(o)
	var inventory *v1alpha1.Inventory
	if o != nil {
		inventory = o.Status.Inventory
	}
	s.setInventory(inventory)
}

// followProxy begins or ends the removal.
func (s *store) followProxy(o *v1alpha1.NodeProxy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proxyLive = o != nil && o.DeletionTimestamp == nil
	switch {
	case o == nil: // what has begun goes on
	case s.proxyLive:
		s.endRemoval()
	case o.Spec.RemovalPolicy != nil && *o.Spec.RemovalPolicy == v1alpha1.RemovalCleanup:
		s.beginRemoval(o)
	case !s.removal.done: // somebody has thought better of it; what is removed stays so
		s.endRemoval()
	}
}

// DeleteProxy takes the last state of a NodeProxy that is gone. It may be the first
// that shows that it was being deleted.
func (s *store) DeleteProxy(o *v1alpha1.NodeProxy) {
	if o.DeletionTimestamp != nil {
		s.SetProxy(o)
	}
	s.SetProxy(nil)
}

// beginRemoval has the rules be removed. The caller holds mu.
func (s *store) beginRemoval(o *v1alpha1.NodeProxy) {
	if s.removal.wanted {
		return
	}
	settings := o.Spec.Settings
	s.removal = removal{wanted: true, audit: settings != nil && settings.Enforcement != nil && *settings.Enforcement == v1alpha1.Audit}
	now := s.clock.Now()
	for _, e := range s.held { // for nothing any more
		s.drop(e, now)
	}
}

// endRemoval has rules be written again. The caller holds mu.
func (s *store) endRemoval() {
	if !s.removal.wanted {
		return
	}
	if s.removal.done && !s.rulesExists {
		s.current = nil // of a node as it was long ago; a new one is to come
	}
	s.removal = removal{}
	now := s.clock.Now()
	s.confirmed, s.unconfirmedSince = false, now // what agreed was another list
	s.waitAnew(now)
	s.markFull(now)
}

// rememberRemoval goes on where an earlier run of the agent has removed the
// rules, by the status as it was first seen. The caller holds mu.
func (s *store) rememberRemoval(object *v1alpha1.NodeProxyRules) {
	c := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionProgrammed)
	if s.proxyLive || c == nil || c.Reason != v1alpha1.ReasonRemoved {
		return
	}
	s.removal.wanted, s.removal.cleared, s.removal.done, s.removal.message = true, true, true, c.Message
}

// removing reports whether the rules are to be removed, or have been.
func (s *store) removing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removal.wanted
}

// oriented reports whether the API has shown, since the start, all that says
// whether rules are to be written or removed.
func (s *store) oriented() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proxyListed && (s.rulesListed || s.restored.rules)
}

// oriented is the store's, but does not wait for ever: rules are not to be missed
// because of a kind that cannot be read.
func (a *Agent) oriented() bool {
	return a.store.oriented() || a.options.Clock.Since(a.started) >= orientPatience
}

// followRemoval has the turn be taken or given up when a NodeProxy is being
// deleted, or is there again.
func (a *Agent) followRemoval() {
	a.mu.Lock()
	defer a.mu.Unlock()
	// Not before the lock: see noteObject.
	removing := a.store.removing()
	if removing == a.wasRemoving {
		return
	}
	a.wasRemoving = removing
	switch {
	case !removing:
		a.log.Info("The rules of this node are programmed again: there is a NodeProxy that is not being deleted, or its removalPolicy is Retain now")
	case a.store.endedRemoval().done:
		a.log.Info("This node's rules were removed with the NodeProxy before this agent started: nothing is programmed until there is one again")
	default:
		a.log.Info("The NodeProxy is being deleted with removalPolicy Cleanup: nothing is programmed any more, and this node's rules are removed")
	}
	a.loop.TriggerAfresh()
	select {
	case a.switched <- struct{}{}:
	default:
	}
}

// clearRemoval lets the sync loop remove the rules if they are to be, given what
// a look for other proxies has found while we do not have the turn.
func (a *Agent) clearRemoval(sign string, free bool) {
	if a.oriented() && a.store.clearRemoval(sign, free) {
		a.loop.TriggerAfresh()
	}
}

// clearRemoval reports whether the removal may be done from now on. Beside
// another proxy, and with Audit, the kernel is not touched.
func (s *store) clearRemoval(sign string, free bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.removal
	audit := s.inAudit() || s.settings == nil && r.audit
	if !r.wanted || r.cleared || sign == "" && !free && !audit {
		return false
	}
	r.cleared = true
	switch {
	case audit:
		r.leave = auditMessage
	case sign != "":
		r.leave = fmt.Sprintf(leaveMessage, sign)
	}
	return true
}

// dueRemoval returns the removal if the sync loop has to do it now.
func (s *store) dueRemoval() (removal, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removal, s.removal.wanted && s.removal.cleared && !s.removal.done
}

// removeRules takes nodeproxy's rules out of the kernel, and what would bring
// them back. The sync loop calls it, and again with growing pauses where it has
// failed.
func (a *Agent) removeRules(ctx context.Context) error {
	r, due := a.store.dueRemoval()
	if !due {
		return nil
	}
	// First, so that an agent that is killed now does not bring the rules back.
	err := a.keeper.discard()
	if r.leave == "" {
		if sign, _ := a.lookForOther(ctx, false); sign != "" { // it has just come
			r.leave = fmt.Sprintf(leaveMessage, sign)
		} else {
			within, cancel := finishing(ctx)
			err = errors.Join(err, a.clean(within))
			cancel()
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	message := r.leave
	if message == "" {
		message = removedMessage
	}
	a.logRemoval(err, message)
	rulesets := a.store.removed(err, message)
	if err == nil && r.leave == "" {
		a.cleanRemoved(rulesets)
	}
	a.pokeStatus()
	return err
}

// clean removes rules, and of mode IPVS what is not in excluded ranges.
func (a *Agent) clean(ctx context.Context) error {
	if err := a.fanout.Exclude(a.store.excluded()); err != nil {
		return err
	}
	return a.fanout.Cleanup(ctx)
}

// excluded are spec.settings.ipvs.excludeCIDRs, as far as they are known: an agent
// that starts into a removal has applied none.
func (s *store) excluded() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settings == nil {
		return nil
	}
	return s.settings.IPVS.ExcludeCIDRs
}

func (a *Agent) logRemoval(err error, message string) {
	_, changed := a.news(removals, wording.OfError(err))
	switch {
	case err == nil:
		a.log.Info("The NodeProxy is gone with removalPolicy Cleanup", "outcome", message)
	case changed:
		a.log.Error(err, "Could not remove this node's rules; trying again with growing pauses")
	}
}

// removed takes the outcome of a removal. It returns what the kernel holds now:
// of no Service anything.
func (s *store) removed(err error, message string) map[dataplane.Family]*dataplane.Ruleset {
	rulesets := map[dataplane.Family]*dataplane.Ruleset{}
	s.mu.Lock()
	if s.removal.wanted { // it may have been called off meanwhile
		s.removal.err = err
		s.removal.done, s.removal.message = err == nil, message
	}
	if s.removal.done {
		s.applied = appliedState{}
	}
	if s.current != nil {
		for family := range s.families {
			rulesets[family] = &dataplane.Ruleset{Node: s.node(family), Full: true}
		}
	}
	s.mu.Unlock()
	s.forget()
	return rulesets
}

// cleanRemoved has the UDP flows that went by the rules be removed: they would go
// on to their endpoints for as long as datagrams come, with nobody to notice that
// those are gone.
func (a *Agent) cleanRemoved(rulesets map[dataplane.Family]*dataplane.Ruleset) {
	for family, cleaners := range a.cleaners {
		r := rulesets[family]
		if r == nil {
			continue
		}
		for _, cleaner := range cleaners {
			cleaner.Committed(r, dataplane.Result{Kind: v1alpha1.SyncFull})
		}
	}
}

// mayClean reports whether stale flows may be removed: while we have the turn, and
// after the rules that made them are removed, unless another proxy has come.
func (a *Agent) mayClean() bool {
	if a.mayWrite() {
		return true
	}
	a.mu.Lock()
	other := a.turn.other
	a.mu.Unlock()
	r := a.store.endedRemoval()
	return other == "" && r.done && r.leave == ""
}

func (s *store) endedRemoval() removal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removal
}

// removalRow is the condition Programmed once rules are to be removed.
func removalRow(r removal, f facts) metav1.Condition {
	const deleted = "the NodeProxy is being deleted with removalPolicy Cleanup"
	c := metav1.Condition{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionFalse}
	switch {
	case r.done:
		c.Reason, c.Message = v1alpha1.ReasonRemoved, r.message
	case r.err != nil:
		c.Reason, c.Message = v1alpha1.ReasonFailed, fmt.Sprintf("%s, but not everything of nodeproxy could be removed from this node: %s; the agent tries again", deleted, wording.OneLine(r.err))
	case f.otherProxy != "":
		c.Reason, c.Message = v1alpha1.ReasonPending, fmt.Sprintf("%s: the rules of this node are removed once another proxy (%s) has shown no sign for %s", deleted, f.otherProxy, f.otherWait)
	default:
		c.Reason, c.Message = v1alpha1.ReasonPending, deleted+": the rules of this node are about to be removed"
	}
	return c
}

// discard removes the last good set from the disk, and all of it that was left by
// a write that was cut off. Another is written once there is something to keep.
func (k *setKeeper) discard() error {
	if k == nil {
		return nil
	}
	_, err := fromDisk(k, func() (struct{}, error) { return struct{}{}, k.file.Remove() })
	if err != nil {
		return fmt.Errorf("removing the last good set from this node's disk, by which a restarted agent could bring the rules back: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.since, k.saved, k.failed = time.Time{}, time.Time{}, time.Time{}
	k.metrics.written.Set(0)
	k.metrics.size.Set(0)
	return nil
}

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// noteRemoval has ownership end or begin when a NodeProxy is being deleted, or exists again.
func (a *Agent) noteRemoval() {
	a.mu.Lock()
	defer a.mu.Unlock()
	// Only with the lock: see noteObject.
	removing := a.store.CurrentRemoval().Requested
	if removing == a.removing {
		return
	}
	a.removing, a.leaving = removing, time.Time{}
	clear(a.given)
	switch {
	case !removing:
		a.log.Info("Removal ended; programming this node's rules again")
	case a.store.CurrentRemoval().Done:
		a.log.Info("This node's rules were removed before this agent started; waiting for a NodeProxy")
	default:
		a.log.Info("The NodeProxy is being deleted with removalPolicy Cleanup; removing this node's rules")
	}
	a.loop.TriggerAfresh()
	a.owner.Switched()
}

// removeRules removes nodeproxy's rules from the kernel, and what could restore them. The
// sync loop calls it, and again with growing pauses after a failure.
func (a *Agent) removeRules(ctx context.Context) error {
	r := a.store.CurrentRemoval()
	if !r.Due() {
		return nil
	}
	// First, so that an agent that is killed now does not restore the rules.
	err := a.recovery.Discard()
	other := a.owner.Facts()
	beside := other.Other != "" && other.Gone.IsZero()
	if r.Leave == "" {
		if evidence, _ := a.owner.Detect(ctx, false); evidence != "" { // it has just come
			beside = true
			r.Leave = fmt.Sprintf(desired.LeaveMessage, evidence)
		} else {
			within, cancel := finishing(ctx)
			err = errors.Join(err, a.clean(within))
			cancel()
		}
	}
	message := cmp.Or(r.Leave, desired.RemovedMessage)
	if r.Leave != "" && beside { // without another proxy, nothing else would serve
		given, problem := a.relinquishLast(ctx)
		err = errors.Join(err, problem)
		if given != "" {
			message += ". Only " + given + " was removed, which packets would have met before the rules of another proxy" // its second sentence
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	if _, changed := a.noteChange(removals, wording.OfError(err)); err == nil {
		a.log.Info("The NodeProxy is gone with removalPolicy Cleanup", "outcome", message)
	} else if changed {
		a.log.Error(err, "Could not remove this node's rules; retrying")
	}
	rulesets := a.store.Removed(err, message)
	if err == nil && r.Leave == "" {
		// UDP flows would reach their endpoints for as long as datagrams come, even after those are gone.
		for family, ruleset := range rulesets {
			for _, cleaner := range a.cleaners[family] {
				cleaner.Committed(ruleset, dataplane.Result{Kind: v1alpha1.SyncFull})
			}
		}
	}
	a.pokeStatus()
	return err
}

// clean removes rules, and of mode IPVS what is not in excluded ranges.
func (a *Agent) clean(ctx context.Context) error {
	var o dataplane.CleanupOptions
	if settings, _, _ := a.store.OwnObject(); settings != nil { // an agent that starts into a removal has none
		var err error
		if o.PreservedRanges, err = dataplane.ParsePreserved(settings.IPVS.ExcludeCIDRs); err != nil {
			return err
		}
	}
	return a.fanout.Cleanup(ctx, o)
}

package agent

import (
	"context"
	"errors"
	"fmt"

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
	removing := a.store.Removing()
	if removing == a.removing {
		return
	}
	a.removing = removing
	switch {
	case !removing:
		a.log.Info("The rules of this node are programmed again: there is a NodeProxy that is not being deleted, or its removalPolicy is Retain now")
	case a.store.CurrentRemoval().Done:
		a.log.Info("This node's rules were removed with the NodeProxy before this agent started; nothing is programmed until there is one again")
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
	if r.Leave == "" {
		if sign, _ := a.owner.Detect(ctx, false); sign != "" { // it has just come
			r.Leave = fmt.Sprintf(desired.LeaveMessage, sign)
		} else {
			within, cancel := finishing(ctx)
			err = errors.Join(err, a.clean(within))
			cancel()
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	message := r.Leave
	if message == "" {
		message = desired.RemovedMessage
	}
	if _, changed := a.news(removals, wording.OfError(err)); err == nil {
		a.log.Info("The NodeProxy is gone with removalPolicy Cleanup", "outcome", message)
	} else if changed {
		a.log.Error(err, "Could not remove this node's rules; retrying")
	}
	rulesets := a.store.Removed(err, message)
	if err == nil && r.Leave == "" {
		a.cleanRemoved(rulesets)
	}
	a.pokeStatus()
	return err
}

// clean removes rules, and of mode IPVS what is not in excluded ranges.
func (a *Agent) clean(ctx context.Context) error {
	var o dataplane.CleanupOptions
	if settings, _, _ := a.store.OwnObject(); settings != nil { // an agent that starts into a removal has none
		var err error
		if o.Exclude, err = dataplane.ExcludedRanges(settings.IPVS.ExcludeCIDRs); err != nil {
			return err
		}
	}
	return a.fanout.Cleanup(ctx, o)
}

// cleanRemoved removes the UDP flows that the rules have translated: they would reach their
// endpoints for as long as datagrams come, even after those are gone.
func (a *Agent) cleanRemoved(rulesets map[dataplane.Family]*dataplane.Ruleset) {
	for family, r := range rulesets {
		for _, cleaner := range a.cleaners[family] {
			cleaner.Committed(r, dataplane.Result{Kind: v1alpha1.SyncFull})
		}
	}
}

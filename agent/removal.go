package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// orientPatience is how long an agent that starts waits for what the API shows,
// before it writes: it may have to remove rules, not to write them.
const orientPatience = 5 * time.Second

// oriented is the store's, but does not wait for ever: rules are not to be missed
// because of a kind that cannot be read.
func (a *Agent) oriented() bool {
	return a.store.Oriented() || a.options.Clock.Since(a.started) >= orientPatience
}

// followRemoval has the turn be taken or given up when a NodeProxy is being
// deleted, or is there again.
func (a *Agent) followRemoval() {
	a.mu.Lock()
	defer a.mu.Unlock()
	// Not before the lock: see noteObject.
	removing := a.store.Removing()
	if removing == a.wasRemoving {
		return
	}
	a.wasRemoving = removing
	switch {
	case !removing:
		a.log.Info("The rules of this node are programmed again: there is a NodeProxy that is not being deleted, or its removalPolicy is Retain now")
	case a.store.EndedRemoval().Done:
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
	if a.oriented() && a.store.ClearRemoval(sign, free) {
		a.loop.TriggerAfresh()
	}
}

// removeRules takes nodeproxy's rules out of the kernel, and what would bring
// them back. The sync loop calls it, and again with growing pauses where it has
// failed.
func (a *Agent) removeRules(ctx context.Context) error {
	r, due := a.store.DueRemoval()
	if !due {
		return nil
	}
	// First, so that an agent that is killed now does not bring the rules back.
	err := a.keeper.discard()
	if r.Leave == "" {
		if sign, _ := a.lookForOther(ctx, false); sign != "" { // it has just come
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
	a.logRemoval(err, message)
	rulesets := a.store.Removed(err, message)
	if err == nil && r.Leave == "" {
		a.cleanRemoved(rulesets)
	}
	a.pokeStatus()
	return err
}

// clean removes rules, and of mode IPVS what is not in excluded ranges.
func (a *Agent) clean(ctx context.Context) error {
	exclude, err := dataplane.ExcludedRanges(a.store.Excluded())
	if err != nil {
		return err
	}
	return a.fanout.Cleanup(ctx, dataplane.CleanupOptions{Exclude: exclude})
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
	r := a.store.EndedRemoval()
	return other == "" && r.Done && r.Leave == ""
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
	k.metrics.Written.Set(0)
	k.metrics.Size.Set(0)
	return nil
}

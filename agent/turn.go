package agent

import (
	"context"
	"sync"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/ownership"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
)

const (
	// lookPause is the time between looks for another proxy.
	lookPause = time.Second
	// auditPause is the same with Audit, or once rules are removed, where only people
	// read what is found.
	auditPause = 5 * time.Second
	// askPause is the time between looks at the ports of proxies while we should
	// hold them ourselves. A kube-proxy that could not open one tries every 5 s.
	askPause = 5 * time.Second
)

// turn is whether we may write, as far as other proxies are concerned. The
// agent's mu guards it.
type turn struct {
	held bool
	// ctx ends with the turn; end ends it.
	ctx context.Context
	end context.CancelFunc

	// other is what tells of another proxy, or last told of one for which we
	// still wait; empty: none. Gone is since when it has not shown; zero: it
	// shows. Wait is for how long it must not.
	other string
	gone  time.Time
	wait  time.Duration
	// unanswered: the last look at the ports got no answer.
	unanswered bool
	// leftovers are what other proxies have left on the node, for people.
	leftovers []string
}

// takeTurns opens the proxy's ports and lets the sync loop write whenever no
// other proxy is active and enforcement is Enforce, until ctx is done.
func (a *Agent) takeTurns(ctx context.Context) {
	w := ownership.NewWaiting(a.options.Clock.Now)
	for a.awaitTurn(ctx, w) {
		began := a.options.Clock.Now()
		a.holdTurn(ctx)
		a.mu.Lock()
		lost := a.turn.other != ""
		a.mu.Unlock()
		w.Ended(lost, a.options.Clock.Now().Sub(began))
	}
}

// awaitTurn returns true once there is a complete set to apply, and no other
// proxy is or has just been active; false when ctx is done. Until then nothing
// is written and none of the proxy's ports is open.
func (a *Agent) awaitTurn(ctx context.Context, w *ownership.Waiting) bool {
	for {
		ready := a.store.Ready() && a.oriented()
		// Not before that: a set is only ready once what is stored is known.
		if a.formerConflict() && !w.Seen {
			w.Remember()
			a.noteOther(formerSign, w, false)
		}
		sign, err := a.lookForOther(ctx, true)
		if ctx.Err() != nil {
			return false
		}
		unknown := false
		if err != nil {
			w.Silent++
			unknown = !a.heardNothing(w.Silent)
		} else {
			w.Silent = 0
		}
		free := w.Look(sign != "", unknown)
		audit, removing := a.store.Auditing(), a.store.Removing()
		a.noteLook(sign, w, free, unknown)
		if removing {
			a.clearRemoval(sign, free)
		}
		if free && ready && !audit && !removing && a.beginTurn(ctx) {
			return true
		}
		// Only a set that is not there yet is waited for: once it is, every event
		// of a watch says so, and each look costs.
		pause, readied := lookPause, a.readied
		if ready || !free || audit || removing {
			readied = nil
		}
		if free && (audit || a.store.EndedRemoval().Done) {
			pause = auditPause
		}
		timer := a.options.Clock.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-readied:
		case <-a.switched:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// formerSign stands for what told an earlier run of the agent.
const formerSign = "as it was reported before this agent started"

// formerConflict reports whether another proxy was active when an agent last
// reported on this node.
func (a *Agent) formerConflict() bool {
	return a.store.FoundConflict() || a.keeper.conflicted()
}

// lookForOther returns what tells of another proxy, empty for none. With ask it
// asks the ports too. An error means that the ports do not tell.
func (a *Agent) lookForOther(ctx context.Context, ask bool) (string, error) {
	defer a.metrics.Checks.Inc()
	if s := a.options.Spotter; s != nil {
		sign, err := s.OtherProxy(ctx)
		if problem := wording.OfError(err); ctx.Err() == nil {
			if _, changed := a.news(looks, problem); changed && err != nil {
				a.log.Error(err, "Could not look for the signs of other proxies in the kernel; going on by their ports alone")
			}
		}
		if sign != "" {
			return sign, nil
		}
	}
	if !ask {
		return "", nil
	}
	return a.options.Probe(ctx, a.instance)
}

// beginTurn takes the turn. It reports false where another proxy's canaries
// cannot be removed yet: they could not tell us of its return.
func (a *Agent) beginTurn(ctx context.Context) bool {
	var leftovers []string
	if a.options.Spotter != nil {
		var err error
		leftovers, err = a.options.Spotter.Begin(ctx)
		if _, changed := a.news(beginnings, wording.OfError(err)); changed && err != nil && ctx.Err() == nil {
			a.log.Error(err, "Could not begin to write: trying again every second; the rules stay as they are")
		}
		if err != nil {
			return false
		}
	}
	for _, leftover := range leftovers {
		a.log.Info("Another proxy has left something on this node", "leftover", leftover)
	}
	a.store.Forget()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn.ctx, a.turn.end = context.WithCancel(ctx)
	a.turn.held, a.turn.leftovers = true, leftovers
	a.turn.other, a.turn.gone, a.turn.unanswered = "", time.Time{}, false
	a.store.BesideOther(false)
	return true
}

// holdTurn opens the proxy's ports and lets the sync loop write, until another
// proxy shows, enforcement becomes Audit, rules are to be removed, or ctx is done.
func (a *Agent) holdTurn(ctx context.Context) {
	a.mu.Lock()
	held := a.turn.ctx
	a.mu.Unlock()
	var wg sync.WaitGroup
	a.takeTurn(held, &wg)
	a.watchTurn(ctx, held)
	wg.Wait()
	if ctx.Err() != nil {
		return // what the kernel holds stays known to whoever keeps it
	}
	if a.options.Spotter != nil {
		a.options.Spotter.End()
	}
	a.store.Forget()
	a.drift.Forget()
	a.loop.TriggerAfresh() // Audit: there is something to compare
	a.pokeStatus()
}

// watchTurn looks for other proxies until the turn has ended.
func (a *Agent) watchTurn(ctx, held context.Context) {
	asked := a.options.Clock.Now()
	for held.Err() == nil {
		if a.store.Auditing() {
			a.log.Info("Enforcement is Audit from now on: closing the proxy's ports and writing nothing; the rules stay as they are, and nobody maintains them unless another proxy runs")
			a.endTurn("")
			break
		}
		if a.store.Removing() {
			a.endTurn("")
			break
		}
		now := a.options.Clock.Now()
		ask := now.Sub(asked) >= askPause
		if ask {
			asked = now
		}
		a.stillOurTurn(held, ask)
		timer := a.options.Clock.NewTimer(lookPause)
		select {
		case <-held.Done():
		case <-a.switched:
		case <-timer.C():
		}
		timer.Stop()
	}
	if ctx.Err() != nil {
		a.endTurn("")
	}
}

// stillOurTurn looks for another proxy while we hold the turn, and ends it where
// one shows. It reports whether we may write. Whoever is about to write calls it
// first, so that a kube-proxy that has just started is not fought.
func (a *Agent) stillOurTurn(ctx context.Context, ask bool) bool {
	sign, _ := a.lookForOther(ctx, ask) // who does not answer holds our port, which is logged
	if ctx.Err() != nil {
		return a.mayWrite()
	}
	if sign != "" {
		a.endTurn(sign)
	}
	return a.mayWrite()
}

// endTurn ends our turn: because of a sign of another proxy, or, if it is
// empty, because we are not to write any more.
func (a *Agent) endTurn(sign string) {
	a.mu.Lock()
	ended := a.turn.held
	if ended {
		a.turn.held, a.turn.other, a.turn.leftovers = false, sign, nil
		a.turn.end()
		a.store.BesideOther(sign != "")
	}
	a.mu.Unlock()
	if ended && sign != "" {
		a.log.Info("Another proxy has started on this node: closing the proxy's ports and writing nothing until it has been silent for a while", "sign", sign)
	}
	a.pokeStatus()
}

// mayWrite reports whether there is a complete set that we may apply now:
// enforcement is Enforce, no other proxy is active, and rules are not to be removed.
func (a *Agent) mayWrite() bool {
	a.mu.Lock()
	held := a.turn.held
	a.mu.Unlock()
	return held && a.store.Ready() && !a.store.Auditing() && !a.store.Removing()
}

// turnContext ends when our turn does.
func (a *Agent) turnContext() context.Context {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.turn.ctx
}

// writing returns a context that outlives ctx by stopGrace, but not our turn,
// unless that ends because the agent stops.
func (a *Agent) writing(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := finishing(ctx)
	stop := context.AfterFunc(a.turnContext(), func() {
		if ctx.Err() == nil {
			cancel()
		}
	})
	return out, func() { stop(); cancel() }
}

// heardNothing notes that the last looks at the ports, so many in a row, got no
// answer. It reports whether that is enough to tell that there is no proxy: one
// that is short of CPU answers late, and must not find us writing beside it. One
// that has answered before stays a proxy until its port is closed.
func (a *Agent) heardNothing(looks int) bool {
	a.mu.Lock()
	showed := a.turn.other != "" && a.turn.gone.IsZero()
	a.mu.Unlock()
	if showed || looks < ownership.ProbeLimit {
		return false
	}
	if looks == ownership.ProbeLimit {
		a.log.Info("Something accepts connections where kube-proxy would answer, but never answers: taking it for no proxy and going on. If kube-proxy does run on this node, stop it", "askedAt", ownership.ProxyModeAddress, "looks", looks)
	}
	return true
}

// noteLook notes what a look has found while we wait for our turn.
func (a *Agent) noteLook(sign string, w *ownership.Waiting, free, unknown bool) {
	switch {
	case sign != "":
		a.noteOther(sign, w, false)
	case free:
		a.noteOther("", w, false)
	default:
		a.mu.Lock()
		former := a.turn.other
		a.mu.Unlock()
		a.noteOther(former, w, unknown)
	}
}

// noteOther notes what tells of another proxy, empty for none, and whether it
// is still waited for an answer.
func (a *Agent) noteOther(sign string, w *ownership.Waiting, unanswered bool) {
	a.mu.Lock()
	former := a.turn
	a.turn.other, a.turn.unanswered = sign, unanswered
	a.turn.gone, a.turn.wait = w.Since, w.Need
	if sign == "" {
		a.turn.gone = time.Time{}
	}
	now := a.turn
	a.store.BesideOther(sign != "")
	a.mu.Unlock()
	if former.other == now.other && former.gone.Equal(now.gone) && former.unanswered == now.unanswered {
		return
	}
	audit := a.store.Auditing()
	switch {
	case former.other == sign:
	case sign != "" && audit:
		a.log.Info("Another proxy is active on this node", "sign", sign)
	case sign != "":
		a.log.Info("Another proxy is active on this node; writing nothing until it stops", "sign", sign)
	case audit:
		a.log.Info("The other proxy shows no more: with enforcement Audit nobody maintains the rules of this node")
	default:
		a.log.Info("The other proxy shows no more; going on")
	}
	if unanswered && !former.unanswered {
		a.log.Info("Something accepts connections where kube-proxy would answer, but has not answered yet; writing nothing until it does, its port is closed, or, where nobody has answered before, several requests in a row got no answer", "askedAt", ownership.ProxyModeAddress, "requests", ownership.ProbeLimit)
	}
	a.pokeStatus()
}

// addTurn adds to the facts what is known of other proxies.
func (a *Agent) addTurn(f *status.Facts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f.OtherProxy, f.OtherGone, f.OtherWait = a.turn.other, a.turn.gone, a.turn.wait
	f.Unanswered, f.Leftovers = a.turn.unanswered, a.turn.leftovers
}

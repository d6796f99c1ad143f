package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/pause"
)

const (
	// restoreDelay is how long the API may take to answer after the start until
	// the last good set is used.
	restoreDelay = 5 * time.Second
	// restoreTick is how often it is looked again whether it has to be used,
	// restoreRetry how often that is tried again where it cannot be.
	restoreTick  = time.Second
	restoreRetry = 10 * time.Second
)

// restoreLoop uses the last good set when the API has not shown everything some
// time after the start, for whatever reason. It ends when nothing is lacking.
func (a *Agent) restoreLoop(ctx context.Context) {
	if a.keeper == nil {
		return
	}
	wait, said := restoreDelay, ""
	for {
		if !pause.For(ctx, a.options.Clock, wait) {
			return
		}
		wait = restoreTick
		if !a.store.Lacking() {
			if a.store.Ready() {
				return
			}
			continue // refused, or to be removed: that may end
		}
		problem := a.restore()
		if problem != "" {
			wait = restoreRetry // its file system may be mounted late
		}
		if problem != said {
			said = problem
			if problem != "" {
				a.log.Info("The API has not answered, and there is no last good set on this node's disk to go by: the rules in the kernel stay as they are, unrepaired, until it answers", "file", a.keeper.file.Path(), "problem", problem)
			}
		}
	}
}

// restore puts the last good set in force. It returns what is wrong with it.
func (a *Agent) restore() string {
	g, err := a.keeper.load()
	if err != nil {
		return err.Error()
	}
	g.Why = a.whyRestored()
	used, err := a.store.Restore(g)
	if err != nil {
		return err.Error()
	}
	if !used { // it has come meanwhile
		return ""
	}
	a.log.Info("The API has not answered since the agent started: going by the last good set on this node's disk until it does. In the same boot only what the kernel lacks is added; after a reboot the endpoints on this node are left out and health checks answer 503",
		"file", a.keeper.file.Path(), "written", g.Written.UTC().Format(time.RFC3339), "age", g.Age(a.options.Clock.Now()).Round(time.Second),
		"services", len(g.Services), "rebooted", g.Rebooted, "why", g.Why)
	a.changed()
	return ""
}

// whyRestored says what the API has not shown, or why not.
func (a *Agent) whyRestored() string {
	if why := a.apiError(); why != "" {
		return why
	}
	if _, _, gone := a.store.OwnObject(); gone {
		return "this node has no NodeProxyRules"
	}
	return fmt.Sprintf("no answer within %s", restoreDelay)
}

// noteRestored says when the API has shown what the last good set stood in for.
func (a *Agent) noteRestored() {
	if a.keeper == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	// Not before the lock: see noteObject.
	r := a.store.InUse()
	a.keeper.metrics.Used(r.Active())
	ended := a.wasRestored && !r.Active()
	a.wasRestored = r.Active()
	if ended {
		a.log.Info("The API has answered: the last good set on disk is not used any more")
	}
}

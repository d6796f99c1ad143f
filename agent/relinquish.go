package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/ownership"
)

// removalPatience is how long a removal waits until another proxy serves.
const removalPatience = time.Minute

// beside is called after each check that shows another proxy.
func (a *Agent) beside() {
	a.mu.Lock()
	gone := a.remain != nil && len(a.remain) == 0
	a.mu.Unlock()
	if !gone {
		a.loop.Trigger()
	}
}

// relinquish removes the rules that another proxy, which owns the node's proxy rules, does not take
// over, once that proxy serves. The sync loop calls it while the agent may not write.
func (a *Agent) relinquish(ctx context.Context) error {
	settings, _, _ := a.store.OwnObject()
	other := a.owner.Facts()
	if settings == nil || other.Other == "" || !other.Gone.IsZero() || other.Unanswered {
		return nil
	}
	_, err := a.giveBack(ctx, a.options.Serving)
	if err == nil {
		a.pokeStatus()
	}
	return err
}

// relinquishLast is relinquish before the end of a removal that leaves all other rules: nothing
// would remove them later. It does not wait forever for a proxy that does not report what it has programmed. It
// returns what it has removed, human-readable.
func (a *Agent) relinquishLast(ctx context.Context) (removed string, err error) {
	a.mu.Lock()
	if a.leaving.IsZero() {
		a.leaving = a.options.Clock.Now()
	}
	waited := a.options.Clock.Since(a.leaving)
	a.mu.Unlock()
	serving := a.options.Serving
	if waited >= removalPatience {
		serving = func(context.Context) map[dataplane.Family]bool {
			all := map[dataplane.Family]bool{}
			for _, family := range a.fanout.Families() {
				all[family] = true
			}
			return all
		}
	}
	given, err := a.giveBack(ctx, serving)
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.Copy(a.given, given)
	if remain := joined(a.remain); err == nil && remain != "" {
		err = fmt.Errorf("packets would meet %s before the rules of another proxy; it is removed once one reports at %s that it has programmed Services, or after %s", remain, ownership.MetricsURL, removalPatience)
	}
	return joined(a.given), err
}

// giveBack removes, in each IP family that another proxy serves, the rules that it would not take over. It
// returns what was removed, human-readable, even if another family fails.
func (a *Agent) giveBack(ctx context.Context, serving ownership.ServingFunc) (map[dataplane.Family]string, error) {
	given := map[dataplane.Family]string{}
	outcomes := a.fanout.Relinquish(ctx, nil)
	former := remaining(outcomes)
	if len(former) > 0 && serving != nil {
		outcomes = a.fanout.Relinquish(ctx, serving(ctx))
		for family, what := range former {
			if outcomes[family].Err == nil && outcomes[family].Value == "" {
				given[family] = what
				a.log.Info("Removed what another proxy does not take over", "ipFamily", family, "removed", what)
			}
		}
	}
	a.noteRemain(outcomes, former)
	return given, dataplane.JoinErrors(outcomes)
}

// noteRemain notes what remains of each family: of one that fails, what remained before.
func (a *Agent) noteRemain(outcomes map[dataplane.Family]dataplane.Outcome[string], former map[dataplane.Family]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	remain := remaining(outcomes)
	for family, o := range outcomes {
		if o.Err == nil {
			continue
		}
		remain[family] = cmp.Or(former[family], a.remain[family], o.Value)
		if remain[family] == "" { // it is unknown
			delete(remain, family)
		}
	}
	if len(remain) == 0 && dataplane.JoinErrors(outcomes) != nil {
		remain = nil // so that it is asked again
	}
	a.remain = remain
}

// remaining returns the rules that remain, human-readable, of each family that has some.
func remaining(outcomes map[dataplane.Family]dataplane.Outcome[string]) map[dataplane.Family]string {
	out := map[dataplane.Family]string{}
	for family, o := range outcomes {
		if o.Value != "" {
			out[family] = o.Value
		}
	}
	return out
}

// forgetRemain is called when the agent may write again.
func (a *Agent) forgetRemain() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remain = nil
}

// joined names what families have, human-readable.
func joined(of map[dataplane.Family]string) string {
	var all []string
	for _, family := range slices.Sorted(maps.Keys(of)) {
		all = append(all, of[family])
	}
	return strings.Join(all, ", ")
}

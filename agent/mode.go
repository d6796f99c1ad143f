package agent

import (
	"context"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// chooseMode decides which mode runs. It reports false if none does. The sync loop calls it
// when the agent may write, as a probe may create a virtual server for a moment.
func (a *Agent) chooseMode(ctx context.Context) bool {
	if q := a.store.OpenQuestion(); q != nil && !a.store.ContinueMode(q) {
		v := a.judge(ctx, q, nil)
		if ctx.Err() != nil {
			return false // the verdict may be due to that
		}
		a.settleMode(q, v)
	}
	return !a.store.ChosenMode().Rejected
}

// supported probes for each family whether the node can run a mode.
func (a *Agent) supported(ctx context.Context, q *desired.ModeQuestion, mode v1alpha1.ProxyMode) map[dataplane.Family]error {
	rulesets := make(map[dataplane.Family]*dataplane.Ruleset, len(q.Nodes))
	for family, node := range q.Nodes {
		rulesets[family] = &dataplane.Ruleset{Mode: mode, Node: node}
	}
	return a.fanout.Supported(ctx, rulesets)
}

// judge returns what the node can run, given the errors of the desired mode; nil: it is probed.
func (a *Agent) judge(ctx context.Context, q *desired.ModeQuestion, errs map[dataplane.Family]error) desired.Verdict {
	if q.Desired == modes.Baseline() {
		return desired.Verdict{}
	}
	if errs == nil {
		errs = a.supported(ctx, q, q.Desired)
	}
	v := q.Judge(errs, nil)
	if v.Lacks == "" {
		return v
	}
	baseline := a.supported(ctx, q, modes.Baseline())
	if v = q.Judge(errs, baseline); v.Lacks == "" {
		return v
	}
	for _, mode := range modes.Fallbacks(q.Settings.ProxySettings) {
		able := mode == modes.Baseline()
		if !able && mode != q.Desired {
			other := q.Judge(a.supported(ctx, q, mode), baseline)
			able = other.Lacks == "" && other.Unknown == nil
		}
		if able {
			v.Fallback = mode
			break
		}
	}
	return v
}

func (a *Agent) settleMode(q *desired.ModeQuestion, v desired.Verdict) {
	a.logMode(q, v, a.store.SettleMode(q, v))
	a.mu.Lock()
	a.probe = modeProbe{} // what the node can run may have changed
	a.mu.Unlock()
	a.pokeStatus()
}

// logMode logs which mode runs if that is not obvious.
func (a *Agent) logMode(q *desired.ModeQuestion, v desired.Verdict, c desired.ModeChoice) {
	if _, changed := a.noteChange(modeErrors, wording.OfError(v.Unknown)); changed && v.Unknown != nil {
		a.log.Error(v.Unknown, "Could not determine whether this node can run the desired mode; retrying", "mode", q.Desired, "effect", "the mode stays")
	}
	former, changed := a.noteChange(modesRun, string(c.Mode)+c.Lacks)
	switch {
	case !changed || v.Unknown != nil:
	case c.Rejection != nil:
		a.log.Info("This node cannot run the desired mode, and no other is allowed; checking again at each verification", "mode", q.Desired, "lacks", c.Lacks, "effect", "the rules in the kernel stay")
	case c.Lacks != "":
		a.log.Info("This node cannot run the desired mode; falling back and checking again at each verification", "mode", q.Desired, "runs", c.Mode, "lacks", c.Lacks)
	case modes.Of(c.Mode).Advice != "":
		a.log.Info("Running the desired mode", "mode", c.Mode, "advice", modes.Of(c.Mode).Advice)
	case former != "":
		a.log.Info("Running the desired mode", "mode", c.Mode)
	}
}

// recheckMode probes the node again if it could not run the desired mode, and reports whether
// that has changed the choice.
func (a *Agent) recheckMode(ctx context.Context) bool {
	former, doubted := a.store.DoubtMode()
	if !doubted {
		return false
	}
	a.chooseMode(ctx)
	return a.store.ChosenMode() != former
}

// auditMode chooses a mode from the comparison of a batch, and reports whether another mode is
// to be compared. Unlike chooseMode it writes nothing, not even for a moment.
func (a *Agent) auditMode(ctx context.Context, b desired.Batch, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Difference]) bool {
	q, known := a.store.AuditQuestion(b)
	if q == nil {
		return false
	}
	errs := map[dataplane.Family]error{}
	for family, outcome := range outcomes {
		errs[family] = outcome.Err
	}
	v := a.judge(ctx, q, errs)
	if v.Unknown != nil && v.Lacks == "" || known && v.Lacks == "" {
		return false
	}
	a.settleMode(q, v)
	chosen := a.store.ChosenMode()
	return !chosen.Rejected && chosen.Mode != q.Desired
}

// modeProbe is when the node is probed for the modes that it could run.
type modeProbe struct {
	done bool
	// next is when it is probed again, after a wait, because something could not be determined.
	next time.Time
	wait time.Duration
}

// Pauses between probes: the first one, which doubles, and the longest.
const (
	probePause        = 10 * time.Second
	longestProbePause = 10 * time.Minute
)

// probeModes notes which modes this node could run, unless that has been done since the start and the
// last choice of a mode. The sync loop calls it.
func (a *Agent) probeModes(ctx context.Context) {
	a.mu.Lock()
	due := !a.probe.done && !a.options.Clock.Now().Before(a.probe.next)
	a.mu.Unlock()
	q := a.store.ModeProbe()
	if !due || q == nil {
		return
	}
	var out []v1alpha1.ModeSupport
	done := true
	for _, d := range modes.Declarations() {
		if !d.HarmlessProbe {
			continue
		}
		v := q.Judge(a.supported(ctx, q, d.Mode), nil)
		if ctx.Err() != nil {
			return // the verdict may be due to that
		}
		if v.Unknown != nil {
			a.log.V(1).Info("Could not determine whether this node could run a mode; probing again later", "mode", d.Mode, "error", v.Unknown.Error())
			done = false
			continue
		}
		out = append(out, v1alpha1.ModeSupport{Mode: d.Mode, Lacks: text.Truncate(v.Lacks, maxLacks)})
	}
	a.mu.Lock()
	wait := min(max(2*a.probe.wait, probePause), longestProbePause)
	a.modes, a.probe = out, modeProbe{done: done, next: a.options.Clock.Now().Add(wait), wait: wait}
	a.mu.Unlock()
	a.pokeStatus()
}

// maxLacks bounds the text about each mode in the status, in bytes.
const maxLacks = 500

// proxyMode is the running mode as kube-proxy names it.
func (a *Agent) proxyMode() string { return strings.ToLower(string(a.store.Running())) }

package agent

import (
	"context"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// chooseMode decides which mode runs. It reports false if none does. The sync loop calls it
// when the agent may write, as a probe may create a virtual server for a moment.
func (a *Agent) chooseMode(ctx context.Context) bool {
	q := a.store.ModeQuestion()
	switch {
	case q == nil:
	case q.Stays:
		a.store.StayInMode()
	default:
		v := a.judge(ctx, q, nil)
		if ctx.Err() != nil {
			return false // the verdict may be due to that
		}
		a.settleMode(q, v)
	}
	return !a.store.ChosenMode().Refused
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
	a.pokeStatus()
}

// logMode logs which mode runs if that is not obvious.
func (a *Agent) logMode(q *desired.ModeQuestion, v desired.Verdict, c desired.ModeChoice) {
	if _, changed := a.news(modeErrors, wording.OfError(v.Unknown)); changed && v.Unknown != nil {
		a.log.Error(v.Unknown, "Could not determine whether this node can run the desired mode; retrying, the mode stays", "mode", q.Desired)
	}
	former, changed := a.news(modesRun, string(c.Mode)+c.Lacks)
	switch {
	case !changed || v.Unknown != nil:
	case c.Refusal != nil:
		a.log.Info("This node cannot run the desired mode and no other is allowed; its rules stay. Each verification checks again", "mode", q.Desired, "lacks", c.Lacks)
	case c.Lacks != "":
		a.log.Info("This node cannot run the desired mode; falling back. Each verification checks again", "mode", q.Desired, "runs", c.Mode, "lacks", c.Lacks)
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
	return !chosen.Refused && chosen.Mode != q.Desired
}

// proxyMode is the running mode as kube-proxy names it.
func (a *Agent) proxyMode() string { return strings.ToLower(string(a.store.Running())) }

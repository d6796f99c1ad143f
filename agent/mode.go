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

// chooseMode decides which mode runs. It reports false where none does. The sync
// loop calls it when we may write: asking may have the node make a virtual server
// for a moment.
func (a *Agent) chooseMode(ctx context.Context) bool {
	q := a.store.ModeQuestion()
	switch {
	case q == nil:
	case q.Stays:
		a.store.StayInMode()
	default:
		v := a.askNode(ctx, q)
		if ctx.Err() != nil {
			return false // what it said may be due to that
		}
		a.settleMode(q, v)
	}
	return !a.store.ModeRefused()
}

// askNode asks what the node can run.
func (a *Agent) askNode(ctx context.Context, q *desired.ModeQuestion) desired.Verdict {
	if q.Wanted == modes.Baseline() {
		return desired.Verdict{}
	}
	return a.judge(ctx, q, a.supported(ctx, q, q.Wanted))
}

// supported asks for each family whether the node can run a mode.
func (a *Agent) supported(ctx context.Context, q *desired.ModeQuestion, mode v1alpha1.ProxyMode) map[dataplane.Family]error {
	rulesets := make(map[dataplane.Family]*dataplane.Ruleset, len(q.Nodes))
	for family, node := range q.Nodes {
		rulesets[family] = &dataplane.Ruleset{Mode: mode, Node: node.Node}
	}
	return a.fanout.Supported(ctx, rulesets)
}

// judge is that of q, given what the node said of the desired mode.
func (a *Agent) judge(ctx context.Context, q *desired.ModeQuestion, said map[dataplane.Family]error) desired.Verdict {
	if q.Wanted == modes.Baseline() {
		return desired.Verdict{}
	}
	v := q.Judge(said, nil)
	if v.Lacks == "" {
		return v
	}
	baseline := a.supported(ctx, q, modes.Baseline())
	if v = q.Judge(said, baseline); v.Lacks == "" {
		return v
	}
	for _, mode := range modes.Fallbacks(q.Settings) {
		able := mode == modes.Baseline()
		if !able && mode != q.Wanted {
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

// logMode says which mode runs, where there is something to say about it.
func (a *Agent) logMode(q *desired.ModeQuestion, v desired.Verdict, c desired.ModeChoice) {
	if _, changed := a.news(modeDoubts, wording.OfError(v.Unknown)); changed && v.Unknown != nil {
		a.log.Error(v.Unknown, "It cannot be told whether this node can run the mode that is asked for; asking again, the mode stays as it is", "mode", q.Wanted)
	}
	text := string(c.Mode) + c.Lacks
	former, changed := a.news(ranModes, text)
	switch {
	case !changed || v.Unknown != nil:
	case c.Refusal != nil:
		a.log.Info("This node cannot run the mode that is asked for, and no other may run: its rules stay as they are. It is looked at again at each verification", "mode", q.Wanted, "lacks", c.Lacks)
	case c.Lacks != "":
		a.log.Info("This node cannot run the mode that is asked for: falling back. It is looked at again at each verification", "mode", q.Wanted, "runs", c.Mode, "lacks", c.Lacks)
	case modes.Of(c.Mode).Advice != "":
		a.log.Info("Running the mode that is asked for", "mode", c.Mode, "advice", modes.Of(c.Mode).Advice)
	case former != "":
		a.log.Info("Running the mode that is asked for", "mode", c.Mode)
	}
}

// lookAtMode asks the node again where it could not run the desired mode, and
// reports whether that has changed the choice.
func (a *Agent) lookAtMode(ctx context.Context) bool {
	former, doubted := a.store.DoubtMode()
	if !doubted {
		return false
	}
	a.chooseMode(ctx)
	return a.store.ChosenMode() != former
}

// auditMode makes a choice by the comparison of a batch, and reports whether
// another mode is to be compared. Unlike chooseMode it has nothing be written, be
// it for a moment.
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
	return !chosen.Refused && chosen.Mode != q.Wanted
}

// proxyMode is the mode that runs as kube-proxy names it.
func (a *Agent) proxyMode() string { return strings.ToLower(string(a.store.Running())) }

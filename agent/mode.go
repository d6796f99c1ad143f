package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Which mode runs is decided for both IP families together: by what the settings
// ask, and by what the node can run for the families that Services need. The baseline mode
// runs without asking. Another one is asked for once for each change
// of the settings or of the families that are needed, and while the node cannot
// run it once more at each verification: an administrator may have loaded a module. Only
// what the node lacks (dataplane.ErrUnsupported) makes it fall back, to the first mode of
// modes.Fallbacks that it can run; any other error leaves the choice as it was.
//
// A node goes on with the mode that it has run until what is too many may be
// removed from the kernel, if packets meet the rules of that mode before those of the desired
// one: while these rules must stay, they have to be updated.

// modeChoice is which mode runs.
type modeChoice struct {
	// mode is empty before the first choice. With a refusal it is that of before.
	mode v1alpha1.ProxyMode
	// lacks says what keeps the desired mode from running; empty: nothing does.
	lacks string
	// refusal is why none runs: the desired one cannot, and no other may.
	refusal *refusal
	// settings and needed are what the choice was made for. Without settings the
	// node has to be asked.
	settings *v1alpha1.ProxySettings
	needed   [2]bool
}

// modeQuestion is what the node is asked for a choice.
type modeQuestion struct {
	settings *v1alpha1.ProxySettings
	wanted   v1alpha1.ProxyMode
	// stays: the mode that ran goes on for now, so nothing is asked.
	stays bool
	// needed tells of each family whether a Service needs it.
	needed [2]bool
	nodes  map[dataplane.Family]*dataplane.Ruleset
}

// families are those of a modeQuestion, in the order of needed.
var families = [2]dataplane.Family{dataplane.IPv4, dataplane.IPv6}

// verdict is what the node can run of a mode.
type verdict struct {
	// lacks says what is missing, human-readable; empty: nothing.
	lacks string
	// fallback is the mode to run instead; empty: none.
	fallback v1alpha1.ProxyMode
	// unknown is why it cannot be told.
	unknown error
}

// judge says whether a node can run a mode by what it said of each family. A
// family counts if it is needed; if none is, the node must be able to run the
// mode for some. One that the baseline mode does not serve either decides nothing.
func (q *modeQuestion) judge(mode, baseline map[dataplane.Family]error) verdict {
	counts := func(i int) bool { return q.needed[i] || q.needed == [2]bool{} }
	texts := map[string][]string{} // families by what they lack
	var unknown []error
	able := false
	for i, family := range families {
		_, asked := q.nodes[family]
		err := mode[family]
		switch {
		case !asked || !counts(i):
		case err == nil:
			able = true
		case !errors.Is(err, dataplane.ErrUnsupported):
			unknown = append(unknown, fmt.Errorf("%s: %w", family, err))
		case !errors.Is(baseline[family], dataplane.ErrUnsupported):
			text := strings.TrimPrefix(oneLine(err), dataplane.ErrUnsupported.Error()+": ")
			texts[text] = append(texts[text], string(family))
		}
	}
	if able && q.needed == [2]bool{} {
		return verdict{}
	}
	if len(texts) == 0 {
		return verdict{unknown: errors.Join(unknown...)}
	}
	var lacks []string
	for _, text := range slices.Sorted(maps.Keys(texts)) {
		lacks = append(lacks, strings.Join(texts[text], " and ")+": "+text)
	}
	return verdict{lacks: strings.Join(lacks, "; ")}
}

// choose makes the choice that follows a former one.
func (q *modeQuestion) choose(former modeChoice, v verdict) modeChoice {
	made := modeChoice{mode: q.wanted, settings: q.settings, needed: q.needed}
	switch {
	case v.lacks == "" && v.unknown == nil:
	case v.lacks == "": // to be asked again
		if former.mode != "" || former.refusal != nil {
			made = former
		}
		made.settings = nil
	case v.fallback != "":
		made.mode, made.lacks = v.fallback, v.lacks
	default:
		made.mode, made.lacks = former.mode, v.lacks
		made.refusal = &refusal{v1alpha1.ReasonUnsupported, fmt.Sprintf(
			"spec.settings.mode: this node cannot run %s (%s); mend that on the node, or set mode or fallback to %s in the NodeProxy; %s",
			q.wanted, v.lacks, modes.Baseline(), meanwhile)}
	}
	return made
}

// chooseMode decides which mode runs. It reports false where none does. The sync
// loop calls it when we may write: asking may have the node make a virtual server
// for a moment.
func (a *Agent) chooseMode(ctx context.Context) bool {
	q := a.store.modeQuestion()
	switch {
	case q == nil:
	case q.stays:
		a.store.stayInMode()
	default:
		v := a.askNode(ctx, q)
		if ctx.Err() != nil {
			return false // what it said may be due to that
		}
		a.settleMode(q, v)
	}
	return !a.store.modeRefused()
}

// askNode asks what the node can run.
func (a *Agent) askNode(ctx context.Context, q *modeQuestion) verdict {
	if q.wanted == modes.Baseline() {
		return verdict{}
	}
	return a.judge(ctx, q, a.supported(ctx, q, q.wanted))
}

// supported asks for each family whether the node can run a mode.
func (a *Agent) supported(ctx context.Context, q *modeQuestion, mode v1alpha1.ProxyMode) map[dataplane.Family]error {
	rulesets := make(map[dataplane.Family]*dataplane.Ruleset, len(q.nodes))
	for family, node := range q.nodes {
		rulesets[family] = &dataplane.Ruleset{Mode: mode, Node: node.Node}
	}
	return a.fanout.Supported(ctx, rulesets)
}

// judge is that of q, given what the node said of the desired mode.
func (a *Agent) judge(ctx context.Context, q *modeQuestion, said map[dataplane.Family]error) verdict {
	if q.wanted == modes.Baseline() {
		return verdict{}
	}
	v := q.judge(said, nil)
	if v.lacks == "" {
		return v
	}
	baseline := a.supported(ctx, q, modes.Baseline())
	if v = q.judge(said, baseline); v.lacks == "" {
		return v
	}
	for _, mode := range modes.Fallbacks(q.settings) {
		able := mode == modes.Baseline()
		if !able && mode != q.wanted {
			other := q.judge(a.supported(ctx, q, mode), baseline)
			able = other.lacks == "" && other.unknown == nil
		}
		if able {
			v.fallback = mode
			break
		}
	}
	return v
}

func (a *Agent) settleMode(q *modeQuestion, v verdict) {
	a.logMode(q, v, a.store.settleMode(q, v))
	a.pokeStatus()
}

// logMode says which mode runs, where there is something to say about it.
func (a *Agent) logMode(q *modeQuestion, v verdict, c modeChoice) {
	if _, changed := a.news(modeDoubts, errorText(v.unknown)); changed && v.unknown != nil {
		a.log.Error(v.unknown, "It cannot be told whether this node can run the mode that is asked for; asking again, the mode stays as it is", "mode", q.wanted)
	}
	text := string(c.mode) + c.lacks
	former, changed := a.news(ranModes, text)
	switch {
	case !changed || v.unknown != nil:
	case c.refusal != nil:
		a.log.Info("This node cannot run the mode that is asked for, and no other may run: its rules stay as they are. It is looked at again at each verification", "mode", q.wanted, "lacks", c.lacks)
	case c.lacks != "":
		a.log.Info("This node cannot run the mode that is asked for: falling back. It is looked at again at each verification", "mode", q.wanted, "runs", c.mode, "lacks", c.lacks)
	case modes.Of(c.mode).Advice != "":
		a.log.Info("Running the mode that is asked for", "mode", c.mode, "advice", modes.Of(c.mode).Advice)
	case former != "":
		a.log.Info("Running the mode that is asked for", "mode", c.mode)
	}
}

// lookAtMode asks the node again where it could not run the desired mode, and
// reports whether that has changed the choice.
func (a *Agent) lookAtMode(ctx context.Context) bool {
	former, doubted := a.store.doubtMode()
	if !doubted {
		return false
	}
	a.chooseMode(ctx)
	return a.store.chosenMode() != former
}

// auditMode makes a choice by the comparison of a batch, and reports whether
// another mode is to be compared. Unlike chooseMode it has nothing be written, be
// it for a moment.
func (a *Agent) auditMode(ctx context.Context, b batch, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Difference]) bool {
	q, known := a.store.auditQuestion(b)
	if q == nil {
		return false
	}
	errs := map[dataplane.Family]error{}
	for family, outcome := range outcomes {
		errs[family] = outcome.Err
	}
	v := a.judge(ctx, q, errs)
	if v.unknown != nil && v.lacks == "" || known && v.lacks == "" {
		return false
	}
	a.settleMode(q, v)
	chosen := a.store.chosenMode()
	return !chosen.refused && chosen.mode != q.wanted
}

// modeQuestion returns what has to be asked; nil: nothing, the choice stands.
func (s *store) modeQuestion() *modeQuestion {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.question()
	if s.mode.settings == q.settings && s.mode.needed == q.needed {
		return nil
	}
	ran, wanted := modes.Of(s.ran), modes.Of(q.wanted)
	q.stays = s.ran != "" && ran.Precedes(&wanted) && !s.mayPrune()
	s.addNodes(q)
	return q
}

// stayInMode has the mode that ran go on, until the node is asked.
func (s *store) stayInMode() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = modeChoice{mode: s.ran}
}

// question is what the node would be asked now. The caller holds mu.
func (s *store) question() *modeQuestion {
	q := &modeQuestion{settings: s.settings, wanted: *s.settings.Mode}
	if q.wanted == modes.Baseline() {
		return q // whatever is needed
	}
	for i, family := range families {
		if f := s.families[family]; f != nil {
			q.needed[i] = f.needed()
		}
	}
	return q
}

// addNodes adds what the data planes need to know to answer. The caller holds mu.
func (s *store) addNodes(q *modeQuestion) {
	q.nodes = make(map[dataplane.Family]*dataplane.Ruleset, len(s.families))
	for family := range s.families {
		q.nodes[family] = &dataplane.Ruleset{Node: s.node(family)}
	}
}

// auditQuestion is the question that the comparison of a batch has answered; nil:
// the desired mode was not compared, or before what is known was dropped. Known: a
// choice was made before.
func (s *store) auditQuestion(b batch) (q *modeQuestion, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q = s.question()
	if b.applied.mode != q.wanted || b.epoch != s.epoch {
		return nil, true
	}
	s.addNodes(q)
	return q, s.mode.settings == q.settings && s.mode.refusal == nil
}

// auditedMode is the mode to compare with Audit: the desired one, unless it is
// known that another one would run. The caller holds mu.
func (s *store) auditedMode() v1alpha1.ProxyMode {
	if s.mode.settings != s.settings || s.mode.refusal != nil {
		return *s.settings.Mode
	}
	return s.mode.mode
}

// settleMode makes a choice and returns it. The next write, which the caller is
// about to make, is full if that changes the mode.
func (s *store) settleMode(q *modeQuestion, v verdict) modeChoice {
	s.mu.Lock()
	defer s.mu.Unlock()
	former := s.mode
	s.mode = q.choose(former, v)
	if s.mode.chosen() != former.chosen() && !s.inAudit() { // which compares all anyway
		for _, f := range s.families {
			f.full, f.absent = true, nil // in this mode it may be there
		}
	}
	return s.mode
}

// chosenMode is a choice as far as it decides what is written.
type chosenMode struct {
	mode    v1alpha1.ProxyMode
	refused bool
}

func (s *store) chosenMode() chosenMode {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mode.chosen()
}

func (c *modeChoice) chosen() chosenMode { return chosenMode{c.mode, c.refusal != nil} }

// doubtMode has the node be asked again if it could not run the desired mode, or
// could not tell. It returns the choice, and whether that is so.
func (s *store) doubtMode() (chosenMode, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mode.lacks != "" {
		s.mode.settings = nil
	}
	return s.mode.chosen(), s.mode.settings == nil
}

// modeRefused reports whether no mode runs.
func (s *store) modeRefused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mode.refusal != nil
}

// running is the mode that runs, or is about to.
func (s *store) running() v1alpha1.ProxyMode {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.applied.mode != "":
		return s.applied.mode
	case s.mode.mode != "":
		return s.mode.mode
	default:
		return modes.Baseline()
	}
}

// whyNot is why what the own object asks is not done; nil: it is. The caller
// holds mu.
func (s *store) whyNot() *refusal {
	if s.refusal != nil {
		return s.refusal
	}
	return s.mode.refusal
}

// proxyMode is the mode that runs as kube-proxy names it.
func (a *Agent) proxyMode() string { return strings.ToLower(string(a.store.running())) }

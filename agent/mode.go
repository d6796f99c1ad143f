package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Which mode runs is decided for both IP families together: by what the settings
// ask, and by what the node can run for the families that Services need. Mode
// IPTables is run without asking. Another one is asked for once for each change
// of the settings or of the families that are needed, and while the node cannot
// run it once more at each verification: somebody may have loaded a module. Only
// what the node lacks (dataplane.ErrUnsupported) makes it fall back; any other
// error leaves the choice as it was.
//
// A node that has run IPTables goes on with it until what is too many may be
// removed from the kernel: packets come to those rules before they come to what
// another mode has, so while they must stay, they have to be kept up to date.

// modeChoice is which mode runs.
type modeChoice struct {
	// mode is empty before the first choice. With a refusal it is that of before.
	mode v1alpha1.ProxyMode
	// lacks says what keeps the wanted mode from running; empty: nothing does.
	lacks string
	// refusal is why none runs: the wanted one cannot, and no other may.
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
	// needed tells of each family whether a Service needs it.
	needed [2]bool
	nodes  map[dataplane.Family]*dataplane.Ruleset
}

// families are those of a modeQuestion, in the order of needed.
var families = [2]dataplane.Family{dataplane.IPv4, dataplane.IPv6}

// verdict is what the node can run of a mode.
type verdict struct {
	// lacks says what is missing, for people; empty: nothing.
	lacks string
	// unknown is why it cannot be told.
	unknown error
}

// judge says whether a node can run a mode by what it said of each family. A
// family counts if it is needed; if none is, the node must be able to run the
// mode for some. One that mode IPTables does not serve either decides nothing.
func (q *modeQuestion) judge(mode, rules map[dataplane.Family]error) verdict {
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
		case !errors.Is(rules[family], dataplane.ErrUnsupported):
			text := strings.TrimPrefix(wording.OneLine(err), dataplane.ErrUnsupported.Error()+": ")
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
	case *q.settings.Fallback == v1alpha1.FallbackIPTables:
		made.mode, made.lacks = v1alpha1.ModeIPTables, v.lacks
	default:
		made.mode, made.lacks = former.mode, v.lacks
		made.refusal = &refusal{v1alpha1.ReasonUnsupported, fmt.Sprintf(
			"spec.settings.mode: this node cannot run %s (%s); mend that on the node, or set mode or fallback to %s in the NodeProxy; %s",
			q.wanted, v.lacks, v1alpha1.ModeIPTables, meanwhile)}
	}
	return made
}

// chooseMode decides which mode runs. It reports false where none does. The sync
// loop calls it when we may write: asking may have the node make a virtual server
// for a moment.
func (a *Agent) chooseMode(ctx context.Context) bool {
	q := a.store.modeQuestion()
	if q == nil {
		return !a.store.modeRefused()
	}
	v := a.askNode(ctx, q)
	if ctx.Err() != nil {
		return false // what it said may be due to that
	}
	a.settleMode(q, v)
	return !a.store.modeRefused()
}

// askNode asks what the node can run.
func (a *Agent) askNode(ctx context.Context, q *modeQuestion) verdict {
	if q.wanted == v1alpha1.ModeIPTables {
		return verdict{}
	}
	return a.judge(ctx, q, a.fanout.SupportsMode(ctx, q.wanted, q.nodes))
}

// judge is that of q, given what the node said of the wanted mode.
func (a *Agent) judge(ctx context.Context, q *modeQuestion, said map[dataplane.Family]error) verdict {
	if q.wanted == v1alpha1.ModeIPTables {
		return verdict{}
	}
	v := q.judge(said, nil)
	if v.lacks != "" {
		v = q.judge(said, a.fanout.SupportsMode(ctx, v1alpha1.ModeIPTables, q.nodes))
	}
	return v
}

func (a *Agent) settleMode(q *modeQuestion, v verdict) {
	a.logMode(q, v, a.store.settleMode(q, v))
	a.pokeStatus()
}

// logMode says which mode runs, where there is something to say about it.
func (a *Agent) logMode(q *modeQuestion, v verdict, c modeChoice) {
	if _, changed := a.news(modeDoubts, wording.OfError(v.unknown)); changed && v.unknown != nil {
		a.log.Error(v.unknown, "It cannot be told whether this node can run the mode that is asked for; asking again, the mode stays as it is", "mode", q.wanted)
	}
	text := string(c.mode) + c.lacks
	former, changed := a.news(modes, text)
	switch {
	case !changed || v.unknown != nil:
	case c.refusal != nil:
		a.log.Info("This node cannot run the mode that is asked for, and no other may run: its rules stay as they are. It is looked at again at each verification", "mode", q.wanted, "lacks", c.lacks)
	case c.lacks != "":
		a.log.Info("This node cannot run the mode that is asked for: falling back. It is looked at again at each verification", "mode", q.wanted, "runs", c.mode, "lacks", c.lacks)
	case c.mode == v1alpha1.ModeIPVS:
		a.log.Info("Running mode IPVS. Kubernetes retires kube-proxy's ipvs mode (off by default in 1.40, removed in 1.43): plan to move to mode IPTables")
	case former != "":
		a.log.Info("Running the mode that is asked for", "mode", c.mode)
	}
}

// lookAtMode asks the node again where it could not run the wanted mode, and
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
func (a *Agent) auditMode(ctx context.Context, b batch, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Audit]) bool {
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
	return a.store.chosenMode() == chosenMode{mode: v1alpha1.ModeIPTables} && q.wanted != v1alpha1.ModeIPTables
}

// modeQuestion returns what has to be asked; nil: nothing, the choice stands.
func (s *store) modeQuestion() *modeQuestion {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.question()
	if s.mode.settings == q.settings && s.mode.needed == q.needed {
		return nil
	}
	if q.wanted != v1alpha1.ModeIPTables && s.ran == v1alpha1.ModeIPTables && !s.mayPrune() {
		s.mode = modeChoice{mode: v1alpha1.ModeIPTables}
		return nil
	}
	s.addNodes(q)
	return q
}

// question is what the node would be asked now. The caller holds mu.
func (s *store) question() *modeQuestion {
	q := &modeQuestion{settings: s.settings, wanted: *s.settings.Mode}
	if q.wanted == v1alpha1.ModeIPTables {
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
// the wanted mode was not compared, or before what is known was dropped. Known: a
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

// auditedMode is the mode to compare with Audit: the wanted one, unless it is
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

// doubtMode has the node be asked again if it could not run the wanted mode, or
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
		return v1alpha1.ModeIPTables
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

// fallback says why another mode runs than the wanted one; empty: it does not.
func (c *modeChoice) fallback() string {
	if c.lacks == "" || c.refusal != nil {
		return ""
	}
	return c.lacks
}

// fallbackCondition is the condition ModeFallback; nil where there is nothing to
// say.
func fallbackCondition(s snapshot, former []metav1.Condition) *metav1.Condition {
	switch {
	case s.mode.fallback() != "":
		return &metav1.Condition{
			Type: v1alpha1.ConditionModeFallback, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonKernelLacksMode,
			Message: fmt.Sprintf("mode %s runs, because this node cannot run the one that is asked for (%s); mend that on the node, and the agent changes the mode by itself at its next verification", s.mode.mode, s.mode.lacks),
		}
	case meta.FindStatusCondition(former, v1alpha1.ConditionModeFallback) != nil:
		return &metav1.Condition{
			Type: v1alpha1.ConditionModeFallback, Status: metav1.ConditionFalse,
			Reason: v1alpha1.ReasonNoFallback, Message: "the mode that runs is the one that is asked for",
		}
	default:
		return nil
	}
}

// retiring says what of another mode the kernel still holds, by family.
func (s *store) retiring() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.joinedRetiring()
}

// joinedRetiring is retiring. The caller holds mu.
func (s *store) joinedRetiring() []string {
	var out []string
	for family, f := range s.families {
		if f.retiring != "" {
			out = append(out, string(family)+": "+f.retiring)
		}
	}
	slices.Sort(out)
	return out
}

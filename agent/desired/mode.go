package desired

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
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

// ModeChoice is which mode runs.
type ModeChoice struct {
	// Mode is empty before the first choice. With a refusal it is that of before.
	Mode v1alpha1.ProxyMode
	// Lacks says what keeps the desired mode from running; empty: nothing does.
	Lacks string
	// Refusal is why none runs: the desired one cannot, and no other may.
	Refusal *Refusal
	// settings and needed are what the choice was made for. Without settings the
	// node has to be asked.
	settings *v1alpha1.ProxySettings
	needed   [2]bool
}

// ModeQuestion is what the node is asked for a choice.
type ModeQuestion struct {
	Settings *v1alpha1.ProxySettings
	Wanted   v1alpha1.ProxyMode
	// Stays: the mode that ran goes on for now, so nothing is asked.
	Stays bool
	// needed tells of each family whether a Service needs it.
	needed [2]bool
	Nodes  map[dataplane.Family]*dataplane.Ruleset
}

// families are those of a modeQuestion, in the order of needed.
var families = [2]dataplane.Family{dataplane.IPv4, dataplane.IPv6}

// Verdict is what the node can run of a mode.
type Verdict struct {
	// Lacks says what is missing, human-readable; empty: nothing.
	Lacks string
	// Fallback is the mode to run instead; empty: none.
	Fallback v1alpha1.ProxyMode
	// Unknown is why it cannot be told.
	Unknown error
}

// Judge says whether a node can run a mode by what it said of each family. A
// family counts if it is needed; if none is, the node must be able to run the
// mode for some. One that the baseline mode does not serve either decides nothing.
func (q *ModeQuestion) Judge(mode, baseline map[dataplane.Family]error) Verdict {
	counts := func(i int) bool { return q.needed[i] || q.needed == [2]bool{} }
	texts := map[string][]string{} // families by what they lack
	var unknown []error
	able := false
	for i, family := range families {
		_, asked := q.Nodes[family]
		err := mode[family]
		switch {
		case !asked || !counts(i):
		case err == nil:
			able = true
		case !errors.Is(err, dataplane.ErrUnsupported):
			unknown = append(unknown, fmt.Errorf("%s: %w", family, err))
		case !errors.Is(baseline[family], dataplane.ErrUnsupported):
			text := strings.TrimPrefix(wording.OneLine(err), dataplane.ErrUnsupported.Error()+": ")
			texts[text] = append(texts[text], string(family))
		}
	}
	if able && q.needed == [2]bool{} {
		return Verdict{}
	}
	if len(texts) == 0 {
		return Verdict{Unknown: errors.Join(unknown...)}
	}
	var lacks []string
	for _, text := range slices.Sorted(maps.Keys(texts)) {
		lacks = append(lacks, strings.Join(texts[text], " and ")+": "+text)
	}
	return Verdict{Lacks: strings.Join(lacks, "; ")}
}

// choose makes the choice that follows a former one.
func (q *ModeQuestion) choose(former ModeChoice, v Verdict) ModeChoice {
	made := ModeChoice{Mode: q.Wanted, settings: q.Settings, needed: q.needed}
	switch {
	case v.Lacks == "" && v.Unknown == nil:
	case v.Lacks == "": // to be asked again
		if former.Mode != "" || former.Refusal != nil {
			made = former
		}
		made.settings = nil
	case v.Fallback != "":
		made.Mode, made.Lacks = v.Fallback, v.Lacks
	default:
		made.Mode, made.Lacks = former.Mode, v.Lacks
		made.Refusal = &Refusal{v1alpha1.ReasonUnsupported, fmt.Sprintf(
			"spec.settings.mode: this node cannot run %s (%s); mend that on the node, or set mode or fallback to %s in the NodeProxy; %s",
			q.Wanted, v.Lacks, modes.Baseline(), Meanwhile)}
	}
	return made
}

// ModeQuestion returns what has to be asked; nil: nothing, the choice stands.
func (s *Store) ModeQuestion() *ModeQuestion {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.question()
	if s.mode.settings == q.Settings && s.mode.needed == q.needed {
		return nil
	}
	ran, wanted := modes.Of(s.ran), modes.Of(q.Wanted)
	q.Stays = s.ran != "" && ran.Precedes(&wanted) && !s.mayPrune()
	s.addNodes(q)
	return q
}

// StayInMode has the mode that ran go on, until the node is asked.
func (s *Store) StayInMode() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = ModeChoice{Mode: s.ran}
}

// question is what the node would be asked now. The caller holds mu.
func (s *Store) question() *ModeQuestion {
	q := &ModeQuestion{Settings: s.settings, Wanted: *s.settings.Mode}
	if q.Wanted == modes.Baseline() {
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
func (s *Store) addNodes(q *ModeQuestion) {
	q.Nodes = make(map[dataplane.Family]*dataplane.Ruleset, len(s.families))
	for family := range s.families {
		q.Nodes[family] = &dataplane.Ruleset{Node: s.node(family)}
	}
}

// AuditQuestion is the question that the comparison of a batch has answered; nil:
// the desired mode was not compared, or before what is known was dropped. Known: a
// choice was made before.
func (s *Store) AuditQuestion(b Batch) (q *ModeQuestion, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q = s.question()
	if b.applied.Mode != q.Wanted || b.Epoch != s.epoch {
		return nil, true
	}
	s.addNodes(q)
	return q, s.mode.settings == q.Settings && s.mode.Refusal == nil
}

// auditedMode is the mode to compare with Audit: the desired one, unless it is
// known that another one would run. The caller holds mu.
func (s *Store) auditedMode() v1alpha1.ProxyMode {
	if s.mode.settings != s.settings || s.mode.Refusal != nil {
		return *s.settings.Mode
	}
	return s.mode.Mode
}

// SettleMode makes a choice and returns it. The next write, which the caller is
// about to make, is full if that changes the mode.
func (s *Store) SettleMode(q *ModeQuestion, v Verdict) ModeChoice {
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

// ChosenMode is a choice as far as it decides what is written.
type ChosenMode struct {
	Mode    v1alpha1.ProxyMode
	Refused bool
}

// ChosenMode returns the mode that runs.
func (s *Store) ChosenMode() ChosenMode {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mode.chosen()
}

func (c *ModeChoice) chosen() ChosenMode { return ChosenMode{c.Mode, c.Refusal != nil} }

// DoubtMode has the node be asked again if it could not run the desired mode, or
// could not tell. It returns the choice, and whether that is so.
func (s *Store) DoubtMode() (ChosenMode, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mode.Lacks != "" {
		s.mode.settings = nil
	}
	return s.mode.chosen(), s.mode.settings == nil
}

// ModeRefused reports whether no mode runs.
func (s *Store) ModeRefused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mode.Refusal != nil
}

// Running is the mode that runs, or is about to.
func (s *Store) Running() v1alpha1.ProxyMode {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.applied.Mode != "":
		return s.applied.Mode
	case s.mode.Mode != "":
		return s.mode.Mode
	default:
		return modes.Baseline()
	}
}

// whyNot is why what the own object asks is not done; nil: it is. The caller
// holds mu.
func (s *Store) whyNot() *Refusal {
	if s.refusal != nil {
		return s.refusal
	}
	return s.mode.Refusal
}

// Fallback says why another mode runs than the desired one; empty: it does not.
func (c *ModeChoice) Fallback() string {
	if c.Lacks == "" || c.Refusal != nil {
		return ""
	}
	return c.Lacks
}

// Retiring says what of another mode the kernel still has, by family.
func (s *Store) Retiring() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.joinedRetiring()
}

// joinedRetiring is retiring. The caller holds mu.
func (s *Store) joinedRetiring() []string {
	var out []string
	for family, f := range s.families {
		if f.retiring != "" {
			out = append(out, string(family)+": "+f.retiring)
		}
	}
	slices.Sort(out)
	return out
}

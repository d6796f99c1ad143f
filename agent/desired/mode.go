package desired

import (
	"cmp"
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

// Which mode runs is decided for both IP families together, by the settings and by what the
// node can run for the families that Services need. The baseline mode runs without a probe.
// Another one is probed once for each change of the settings or of the needed families, and
// while the node cannot run it once more at each verification: an administrator may have loaded
// a module. Only what the node lacks (dataplane.ErrUnsupported) causes a fallback, to the first
// mode of modes.Fallbacks that it can run; any other error leaves the choice as it was.
//
// If packets meet the rules of the mode that ran before those of the desired one, it continues
// until superfluous rules may be removed from the kernel: while its rules must stay, they have
// to be updated.

// ModeChoice is which mode runs.
type ModeChoice struct {
	// Mode is empty before the first choice. With a rejection it is the former one.
	Mode v1alpha1.ProxyMode
	// Lacks is what prevents the desired mode; empty: nothing does.
	Lacks string
	// Rejection is why none runs: the desired one cannot, and no other is allowed.
	Rejection *Rejection
	// settings and needed are what the choice was made for. Without settings the node has to
	// be probed.
	settings *Settings
	needed   [2]bool
}

// ModeQuestion is what the node is probed for.
type ModeQuestion struct {
	Settings *Settings
	Desired  v1alpha1.ProxyMode
	// needed is whether a Service needs each family.
	needed [2]bool
	Nodes  map[dataplane.Family]dataplane.Node
}

// inOrder are the families of a ModeQuestion, in the order of needed.
var inOrder = [2]dataplane.Family{dataplane.IPv4, dataplane.IPv6}

// Verdict is what the node can run of a mode.
type Verdict struct {
	// Lacks is what is missing, human-readable; empty: nothing.
	Lacks string
	// Fallback is the mode to run instead; empty: none.
	Fallback v1alpha1.ProxyMode
	// Unknown is why that cannot be determined.
	Unknown error
}

// Judge returns whether a node can run a mode, given the error of each family. A family counts
// if it is needed; if none is, the node must be able to run the mode for some. A family that
// the baseline mode does not serve either decides nothing.
func (q *ModeQuestion) Judge(mode, baseline map[dataplane.Family]error) Verdict {
	counts := func(i int) bool { return q.needed[i] || q.needed == [2]bool{} }
	texts := map[string][]string{} // families by what they lack
	var unknown []error
	able := false
	for i, family := range inOrder {
		_, probed := q.Nodes[family]
		err := mode[family]
		switch {
		case !probed || !counts(i):
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

// choose returns the choice that follows a former one.
func (q *ModeQuestion) choose(former ModeChoice, v Verdict) ModeChoice {
	made := ModeChoice{Mode: q.Desired, settings: q.Settings, needed: q.needed}
	switch {
	case v.Lacks == "" && v.Unknown == nil:
	case v.Lacks == "": // to be probed again
		if former.Mode != "" || former.Rejection != nil {
			made = former
		}
		made.settings = nil
	case v.Fallback != "":
		made.Mode, made.Lacks = v.Fallback, v.Lacks
	default:
		made.Mode, made.Lacks = former.Mode, v.Lacks
		made.Rejection = &Rejection{v1alpha1.ReasonUnsupported, fmt.Sprintf(
			"spec.settings.mode: this node cannot run %s (%s); fix that on the node, or set mode or fallback to %s in the NodeProxy; %s",
			q.Desired, v.Lacks, modes.Baseline(), Meanwhile)}
	}
	return made
}

// OpenQuestion returns what a choice has to be made for; nil: the choice is still valid.
func (s *Store) OpenQuestion() *ModeQuestion {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := newModeQuestion(&s.own, s.families)
	if s.mode.settings == q.Settings && s.mode.needed == q.needed {
		return nil
	}
	return q
}

// ContinueMode chooses the mode that ran if it has to continue for now, and reports whether it did.
// The question stays open.
func (s *Store) ContinueMode(q *ModeQuestion) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ran, next := modes.Of(s.actual.ran), modes.Of(q.Desired)
	if s.actual.ran == "" || !ran.Precedes(&next) || s.catalog.mayPrune() {
		return false
	}
	s.mode = ModeChoice{Mode: s.actual.ran}
	return true
}

// ModeProbe returns what to probe other modes for; nil: the settings are not known yet.
func (s *Store) ModeProbe() *ModeQuestion {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own.settings == nil {
		return nil
	}
	return newModeQuestion(&s.own, s.families)
}

// newModeQuestion is what the node would be probed for now.
func newModeQuestion(own *ownObject, all families) *ModeQuestion {
	q := &ModeQuestion{Settings: own.settings, Nodes: own.nodes, Desired: own.settings.Mode.Kernel()}
	if q.Desired == modes.Baseline() {
		return q // whatever is needed
	}
	for i, family := range inOrder {
		if f := all[family]; f != nil {
			q.needed[i] = f.needed()
		}
	}
	return q
}

// AuditQuestion is the question that the comparison of a batch has answered; nil: the desired
// mode was not compared, or before what is known was discarded. Known: a choice was made before.
func (s *Store) AuditQuestion(b Batch) (q *ModeQuestion, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q = newModeQuestion(&s.own, s.families)
	if b.applied.Mode != q.Desired || b.Epoch != s.actual.epoch {
		return nil, true
	}
	return q, s.mode.known(q.Settings)
}

// known reports whether it is known for these settings which mode would run.
func (c *ModeChoice) known(settings *Settings) bool {
	return c.settings == settings && c.Rejection == nil
}

// SettleMode makes a choice and returns it. If that changes the mode, the next write is full.
func (s *Store) SettleMode(q *ModeQuestion, v Verdict) ModeChoice {
	s.mu.Lock()
	defer s.mu.Unlock()
	former := s.mode
	s.mode = q.choose(former, v)
	if s.mode.chosen() != former.chosen() && !s.own.audit() { // which compares all anyway
		for _, f := range s.families {
			f.need, f.unavailable = fullPass, nil // in this mode it may be available
		}
	}
	return s.mode
}

// ChosenMode is the part of a choice that decides what is written.
type ChosenMode struct {
	Mode     v1alpha1.ProxyMode
	Rejected bool
}

// ChosenMode returns the mode that runs.
func (s *Store) ChosenMode() ChosenMode {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mode.chosen()
}

func (c *ModeChoice) chosen() ChosenMode { return ChosenMode{c.Mode, c.Rejection != nil} }

// doubt is Store.DoubtMode.
func (c *ModeChoice) doubt() bool {
	if c.Lacks != "" {
		c.settings = nil
	}
	return c.settings == nil
}

// DoubtMode lets the node be probed again if it could not run the desired mode, or if that could
// not be determined. It returns the choice, and whether that is so.
func (s *Store) DoubtMode() (ChosenMode, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mode.chosen(), s.mode.doubt()
}

// Running is the mode that runs, or is about to.
func (s *Store) Running() v1alpha1.ProxyMode {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.actual.applied.Mode, s.mode.Mode, modes.Baseline())
}

// Fallback is why another mode runs than the desired one; empty: it does not.
func (c *ModeChoice) Fallback() string {
	if c.Lacks == "" || c.Rejection != nil {
		return ""
	}
	return c.Lacks
}

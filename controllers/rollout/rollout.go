package rollout

import (
	"cmp"
	"regexp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// The documented defaults of spec.rollout.
const (
	defaultMaxUnavailable  = 1
	defaultDeadlineSeconds = 600
)

// percentages are the percentages that maxUnavailable may be.
var percentages = regexp.MustCompile(`^([1-9][0-9]?|100)%$`)

// Budget limits how fast changes by a policy, or by the NodeProxy, reach the nodes.
type Budget struct {
	// Generation is the metadata.generation of the object.
	Generation int64
	// MaxUnavailable is how many of the selected nodes may be unavailable for a change: a number,
	// or a percentage, rounded down, but at least one.
	MaxUnavailable intstr.IntOrString
	// Deadline is how long a node may take to apply its settings.
	Deadline time.Duration
	// Paused: no node gets settings.
	Paused bool
}

// BudgetOf returns the budget of an object in a generation, from its spec.rollout at a path,
// completed with the documented defaults. The API denies most mistakes itself; this finds those in
// objects that were stored before.
func BudgetOf(generation int64, s *v1alpha1.RolloutSettings, at *field.Path) (Budget, field.ErrorList) {
	b := Budget{
		Generation: generation, MaxUnavailable: intstr.FromInt32(defaultMaxUnavailable), Deadline: defaultDeadlineSeconds * time.Second,
	}
	if s == nil {
		return b, nil
	}
	var errs field.ErrorList
	if most := s.MaxUnavailable; most != nil {
		b.MaxUnavailable = *most
		if most.Type == intstr.Int && most.IntVal < 1 || most.Type == intstr.String && !percentages.MatchString(most.StrVal) {
			errs = append(errs, field.Invalid(at.Child("maxUnavailable"), most.String(), "must be a number of nodes, 1 or more, or 1% to 100%"))
		}
	}
	if seconds := s.ProgressDeadlineSeconds; seconds != nil {
		b.Deadline = time.Duration(*seconds) * time.Second
		if *seconds < 1 {
			errs = append(errs, field.Invalid(at.Child("progressDeadlineSeconds"), *seconds, "must be 1 or more"))
		}
	}
	b.Paused = ptr.Deref(s.Paused, false)
	return b, errs
}

// Node is a node with rules.
type Node struct {
	Name, Zone string
	// Selected are the budgets of all that select the node.
	Selected []string
	// Actual is the revision of the settings in its rules, and Desired that of the desired ones. They
	// are equal if nothing is to change, or the desired one is unknown.
	Actual, Desired string
	// Causes are the budgets that a change needs, all of them.
	Causes []string
	// Given is when the settings in its rules were granted, and By the changes that these were for.
	Given time.Time
	By    []v1alpha1.Cause
	// Applied: its agent has applied, or compared, the settings in its rules.
	Applied bool
	// Programmed: it is programmed, or was compared.
	Programmed bool
	// Absent: the Node does not exist any more. It is neither counted nor waited for.
	Absent bool
	// Idle: nothing is at risk there for now, because no agent has reported yet, or another proxy
	// serves it. It needs no budget, and is never waited for; nor does it get what is paused or
	// halted.
	Idle bool
	// Retains: the desired settings are not known because some policy is invalid. The node retains
	// its settings, and does not count as updated.
	Retains bool
}

// available reports whether a node conforms to its settings.
func (n *Node) available() bool { return n.Applied && n.Programmed }

func (n *Node) pending() bool { return n.Actual != n.Desired }

// State is the progress of changes by one budget.
type State struct {
	// Nodes are those selected, Updated those of them that have the desired settings, Programmed
	// those of these that conform to them.
	Nodes, Updated, Programmed int
	// Unavailable are those selected, or given a change of this generation, that do not do what
	// their settings require, and Max how many of them a change permits.
	Unavailable, Max int
	// Pending counts the nodes with a change of this budget.
	Pending int
	// Missed are the nodes, by name, that did not apply a change of this generation in time. While
	// there are any, no node gets more.
	Missed []string

	// inFlight are the nodes that have not applied a change of this generation yet, by name.
	inFlight map[string]bool
	// given counts such changes by zone, applied or not.
	given map[string]int
}

// InFlight is how many nodes have not applied a change of this generation yet.
func (s *State) InFlight() int { return len(s.inFlight) }

// Decision is what to do next.
type Decision struct {
	// Grants are the nodes that get their desired settings, in this order.
	Grants []string
	// States are those of all budgets, after the grants.
	States map[string]*State
	// Next is when to decide again even if nothing changes; zero: never.
	Next time.Time
}

// Decide decides about all nodes. Budgets that nodes name and that do not exist permit nothing.
// Unavailable nodes come first: there a bad change does the least harm, and a fix arrives soon.
// Then come those of the zone with the fewest changes, then the lower name. A node that is
// available needs each of its budgets to permit one more unavailable node; one that is not needs
// them to permit one more that has not applied a change, so that a bad change cannot reach all
// nodes that do not respond for now.
func Decide(now time.Time, nodes []Node, budgets map[string]Budget) Decision {
	d := &decider{now: now, nodes: nodes, budgets: budgets, out: Decision{States: map[string]*State{}}}
	d.count()
	for {
		best := d.best()
		if best == nil {
			break
		}
		d.grant(best)
	}
	return d.out
}

type decider struct {
	now     time.Time
	nodes   []Node
	budgets map[string]Budget
	out     Decision
	granted map[string]bool // by name
}

func (d *decider) count() {
	d.granted = map[string]bool{}
	for name := range d.budgets {
		d.out.States[name] = &State{given: map[string]int{}, inFlight: map[string]bool{}}
	}
	for i := range d.nodes {
		n := &d.nodes[i]
		if n.Absent {
			continue
		}
		for _, name := range n.Selected {
			if s := d.out.States[name]; s != nil {
				s.countSelected(n)
			}
		}
		if n.pending() {
			for _, name := range n.Causes {
				if s := d.out.States[name]; s != nil {
					s.Pending++
				}
			}
		}
		for _, g := range n.By {
			d.countGiven(n, g)
		}
	}
	for name, s := range d.out.States {
		s.Max = limit(d.budgets[name].MaxUnavailable, s.Nodes)
		slices.Sort(s.Missed)
	}
}

func (s *State) countSelected(n *Node) {
	s.Nodes++
	if !n.available() && !n.Idle {
		s.Unavailable++
	}
	if !n.pending() && !n.Retains {
		s.Updated++
		if n.available() {
			s.Programmed++
		}
	}
}

func (d *decider) countGiven(n *Node, g v1alpha1.Cause) {
	s, b := d.out.States[g.Name], d.budgets[g.Name]
	if s == nil || g.Generation != b.Generation {
		return
	}
	s.given[n.Zone]++
	if n.Idle {
		return
	}
	if !n.available() && !slices.Contains(n.Selected, g.Name) {
		s.Unavailable++ // the change was that it is not selected any more
	}
	if n.Applied {
		return
	}
	s.inFlight[n.Name] = true
	if deadline := n.Given.Add(b.Deadline); d.now.Before(deadline) {
		d.decideAgain(deadline)
	} else {
		s.Missed = append(s.Missed, n.Name)
	}
}

func (d *decider) decideAgain(at time.Time) {
	if d.out.Next.IsZero() || at.Before(d.out.Next) {
		d.out.Next = at
	}
}

// limit is how many of some nodes may be unavailable.
func limit(most intstr.IntOrString, nodes int) int {
	scaled, err := intstr.GetScaledValueFromIntOrPercent(&most, nodes, false)
	if err != nil { // the API denies what is neither
		return 1
	}
	return max(1, scaled)
}

// best returns the node that gets its desired settings next; nil: none.
func (d *decider) best() *Node {
	var best *Node
	for i := range d.nodes {
		n := &d.nodes[i]
		if n.pending() && !d.granted[n.Name] && d.may(n) && (best == nil || d.compare(n, best) < 0) {
			best = n
		}
	}
	return best
}

// may reports whether the budgets of a node permit its change.
func (d *decider) may(n *Node) bool {
	if n.Absent {
		return true
	}
	for _, name := range n.Causes {
		s := d.out.States[name]
		switch {
		case s == nil, d.budgets[name].Paused, len(s.Missed) > 0:
			return false
		case n.Idle: // it needs no budget, but must not start with what is paused or halted
		case n.available() && s.Unavailable >= s.Max:
			return false
		case !n.available() && len(s.inFlight) >= s.Max && !s.inFlight[n.Name]:
			return false
		}
	}
	return len(n.Causes) > 0
}

func (d *decider) compare(a, b *Node) int {
	first := func(yes bool) int {
		if yes {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(first(a.Absent || a.Idle), first(b.Absent || b.Idle)),
		cmp.Compare(first(!a.available()), first(!b.available())),
		cmp.Compare(d.givenIn(a), d.givenIn(b)),
		cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.Name, b.Name))
}

// givenIn is how many nodes of a node's zone were given changes of its budgets.
func (d *decider) givenIn(n *Node) int {
	sum := 0
	for _, name := range n.Causes {
		if s := d.out.States[name]; s != nil {
			sum += s.given[n.Zone]
		}
	}
	return sum
}

func (d *decider) grant(n *Node) {
	d.out.Grants = append(d.out.Grants, n.Name)
	d.granted[n.Name] = true
	if n.Absent {
		return
	}
	for _, name := range n.Selected {
		s := d.out.States[name]
		if s == nil {
			continue
		}
		s.Updated++
		if n.available() && !n.Idle {
			s.Unavailable++
		}
	}
	for _, name := range n.Causes {
		s := d.out.States[name]
		if s == nil { // of a node that is given it at once
			continue
		}
		s.Pending--
		if n.Idle {
			continue
		}
		s.inFlight[n.Name] = true
		s.given[n.Zone]++
		d.decideAgain(d.now.Add(d.budgets[name].Deadline))
		counted := !n.available() && slices.Contains(n.By, v1alpha1.Cause{Name: name, Generation: d.budgets[name].Generation})
		if !slices.Contains(n.Selected, name) && !counted {
			s.Unavailable++ // a policy whose change is that it does not select the node any more
		}
	}
}

// By returns the changes that a node with these causes is given, for its Node.By.
func By(causes []string, budgets map[string]Budget) []v1alpha1.Cause {
	var out []v1alpha1.Cause
	for _, name := range causes {
		out = append(out, v1alpha1.Cause{Name: name, Generation: budgets[name].Generation})
	}
	return out
}

package rollout

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
)

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

// Grant names the change that a node was given.
type Grant struct {
	Name       string // of the budget
	Generation int64
}

// Node is a node with rules.
type Node struct {
	Name, Zone string
	// Selected are the budgets of all that select the node.
	Selected []string
	// Carries is the revision of the settings in its rules, and Wants the desired one. They are
	// equal if nothing is to change, or the desired one is not known.
	Carries, Wants string
	// Causes are the budgets that a change needs, all of them.
	Causes []string
	// Given is when it was given the settings in its rules, and By the changes that these were for.
	Given time.Time
	By    []Grant
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
	// Kept: the desired settings are not known because some policy is invalid. The node keeps its
	// settings, and does not count as updated.
	Kept bool
}

// atOnce reports whether a change needs no budget.
func (n *Node) atOnce() bool { return n.Absent || n.Idle }

// available reports whether a node does what its settings require.
func (n *Node) available() bool { return n.Applied && n.Programmed }

func (n *Node) pending() bool { return n.Carries != n.Wants }

// State is the progress of changes by one budget.
type State struct {
	// Nodes are those selected, Updated those of them that have the desired settings, Programmed
	// those of these that do what they require.
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

// stopped reports whether no node may get settings.
func (s *State) stopped() bool { return len(s.Missed) > 0 }

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

// count fills the states.
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
		s.Max = room(d.budgets[name].MaxUnavailable, s.Nodes)
		slices.Sort(s.Missed)
	}
}

func (s *State) countSelected(n *Node) {
	s.Nodes++
	if !n.available() && !n.Idle {
		s.Unavailable++
	}
	if !n.pending() && !n.Kept {
		s.Updated++
		if n.available() {
			s.Programmed++
		}
	}
}

// countGiven counts a change that a node was given.
func (d *decider) countGiven(n *Node, g Grant) {
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
	deadline := n.Given.Add(b.Deadline)
	if !d.now.Before(deadline) {
		s.Missed = append(s.Missed, n.Name)
	} else if d.out.Next.IsZero() || deadline.Before(d.out.Next) {
		d.out.Next = deadline
	}
}

// room is how many of some nodes may be unavailable.
func room(most intstr.IntOrString, nodes int) int {
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
		case s == nil, d.budgets[name].Paused, s.stopped():
			return false
		case n.Idle: // it needs no room, but is not to come up with what others are kept from
		case n.available() && s.Unavailable >= s.Max:
			return false
		case !n.available() && len(s.inFlight) >= s.Max && !s.inFlight[n.Name]:
			return false
		}
	}
	return len(n.Causes) > 0
}

// compare orders the nodes that may be next.
func (d *decider) compare(a, b *Node) int {
	first := func(yes bool) int {
		if yes {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(first(a.atOnce()), first(b.atOnce())),
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

// grant gives a node its desired settings.
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
		deadline := d.now.Add(d.budgets[name].Deadline)
		if d.out.Next.IsZero() || deadline.Before(d.out.Next) {
			d.out.Next = deadline
		}
		counted := !n.available() && slices.Contains(n.By, Grant{name, d.budgets[name].Generation})
		if !slices.Contains(n.Selected, name) && !counted {
			s.Unavailable++ // a policy whose change is that it does not select the node any more
		}
	}
}

// By returns the changes that a node with these causes is given, for its Node.By.
func By(causes []string, budgets map[string]Budget) []Grant {
	var out []Grant
	for _, name := range causes {
		out = append(out, Grant{Name: name, Generation: budgets[name].Generation})
	}
	return out
}

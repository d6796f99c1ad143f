package nftables

import (
	"maps"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// tally counts what the table has, which need not be read after each change.
type tally struct {
	// elements are those of each set, but for the ones that packets add.
	elements map[string]int
	// fixed and rules count the fixed chains and the rules of all chains, as there were so many chains
	// and numbered sets: both only grow.
	fixed, rules, chains, numbered int
}

// countChange counts what a change adds and deletes.
func (s *state) countChange(c *change) {
	for set, elements := range c.added {
		s.tally.elements[set] += len(elements)
	}
	for set, elements := range c.deleted {
		s.tally.elements[set] -= len(elements)
	}
}

// countAll counts a state that a full pass has written.
func (s *state) countAll(c *config) {
	s.tally = tally{elements: map[string]int{}}
	for _, o := range s.destinations {
		o.countElements(s.tally.elements)
	}
	s.tally.elements[setClusterIPs], s.tally.elements[setHairpin] = len(s.clusterIPs), len(s.hairpin)
	s.countChains(c)
}

// countChains counts chains and rules again if there are more.
func (s *state) countChains(c *config) {
	n := &s.tally
	if n.chains == len(s.chains) && n.numbered == len(s.numbered) && n.fixed > 0 {
		return
	}
	fixed := c.fixedChains(s.numbered)
	n.chains, n.numbered, n.fixed, n.rules = len(s.chains), len(s.numbered), len(fixed), 0
	for _, of := range fixed {
		n.rules += len(of.rules)
	}
	for of := range s.chains {
		n.rules += len(c.rules(of))
	}
}

// counts are those of the table.
func (s *state) counts(c *config) dataplane.Counts {
	s.countChains(c)
	return countsOf(s.tally.fixed+s.tally.chains, s.tally.rules, s.countedElements(c))
}

// countedElements are how many elements each set has.
func (s *state) countedElements(c *config) map[string]int {
	elements := maps.Clone(s.tally.elements)
	for _, set := range c.setNames(s.numbered) {
		elements[set] += 0
	}
	return elements
}

func (l *listing) counts() dataplane.Counts {
	elements := map[string]int{}
	for set := range l.sets {
		elements[set] = l.elements[set].len()
	}
	return l.countsWith(elements)
}

// countsWith are the counts of a listing given the elements of its sets.
func (l *listing) countsWith(elements map[string]int) dataplane.Counts {
	rules := 0
	for _, of := range l.rules {
		rules += len(of)
	}
	return countsOf(len(l.chains), rules, elements)
}

func countsOf(chains, rules int, elements map[string]int) dataplane.Counts {
	out := dataplane.Counts{dataplane.Chains: chains, dataplane.Rules: rules}
	for set, n := range elements {
		if set == setAffinity {
			continue
		}
		for _, kind := range []string{affinePrefix, rangesPrefix} { // in the status, all numbers are one
			if strings.HasPrefix(set, kind) {
				set = kind + "*"
			}
		}
		out[dataplane.ElementsOf(set)] += n
		out[dataplane.Elements] += n
	}
	return out
}

package rollouts

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Given is that a node was given other settings.
type Given struct {
	// Node is its name, and Revision that of the settings.
	Node, Revision string
	// Policies are those that shaped them.
	Policies []string
	// Beside are the other nodes that were not available then, each with the reason.
	Beside []string
}

// String returns it in words.
func (g Given) String() string {
	return fmt.Sprintf("%s was given %s, by policies %q", g.Node, g.Revision, g.Policies)
}

// Story is what became of the nodes, one stored version of their rules after the
// other.
type Story struct {
	// Given are the changes of settings, in the order in which they were stored.
	Given []Given
	// Most is how many nodes at most had settings that were not applied at a time,
	// and Which are those.
	Most  int
	Which []string

	nodes map[string]*v1alpha1.NodeProxyRules // as they were stored last
}

// add adds a version of a node's rules. The first one of a node is where it begins.
func (s *Story) add(rules *v1alpha1.NodeProxyRules) {
	before := s.nodes[rules.Name]
	if s.nodes == nil {
		s.nodes = map[string]*v1alpha1.NodeProxyRules{}
	}
	s.nodes[rules.Name] = rules
	if before != nil && before.Spec.SettingsRevision != rules.Spec.SettingsRevision {
		s.Given = append(s.Given, Given{
			Node: rules.Name, Revision: rules.Spec.SettingsRevision, Policies: rules.Spec.Policies, Beside: s.beside(rules.Name),
		})
	}
	var which []string
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		if !isApplied(s.nodes[name]) {
			which = append(which, name)
		}
	}
	if len(which) > s.Most {
		s.Most, s.Which = len(which), which
	}
}

// beside are the nodes but one that are not available, with the reason.
func (s *Story) beside(name string) (out []string) {
	for _, other := range slices.Sorted(maps.Keys(s.nodes)) {
		if why := unavailable(s.nodes[other]); why != "" && other != name {
			out = append(out, other+": "+why)
		}
	}
	return out
}

// remove forgets a node whose rules are deleted.
func (s *Story) remove(name string) { delete(s.nodes, name) }

// Order are the nodes that were given settings, in that order.
func (s *Story) Order() (names []string) {
	for _, g := range s.Given {
		names = append(names, g.Node)
	}
	return names
}

// OneByOne returns an error unless each node was given its settings while all others
// were available, and no two of them ever had settings that were not applied.
func (s *Story) OneByOne() error {
	var errs []error
	if len(s.Given) == 0 {
		errs = append(errs, errors.New("no node was given anything"))
	}
	for _, g := range s.Given {
		if len(g.Beside) > 0 {
			errs = append(errs, fmt.Errorf("%s, while not available were: %s", g, strings.Join(g.Beside, "; ")))
		}
	}
	if s.Most > 1 {
		errs = append(errs, fmt.Errorf("at the same time %s had settings that were not applied", strings.Join(s.Which, " and ")))
	}
	return errors.Join(errs...)
}

// unavailable explains why a node does not do what it was given; empty: it does. Where
// enforcement is Audit, that is to have compared.
func unavailable(rules *v1alpha1.NodeProxyRules) string {
	c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
	switch {
	case !isApplied(rules):
		return fmt.Sprintf("settings %s are not applied", rules.Spec.SettingsRevision)
	case c == nil:
		return "it has not reported"
	case c.Status == metav1.ConditionTrue, c.Reason == v1alpha1.ReasonAuditDiffers:
		return ""
	}
	return fmt.Sprintf("Programmed is %s, %s: %s", c.Status, c.Reason, c.Message)
}

func isApplied(rules *v1alpha1.NodeProxyRules) bool {
	return rules.Status.SettingsRevision == rules.Spec.SettingsRevision
}

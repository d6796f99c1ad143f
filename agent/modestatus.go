package agent

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// fallback says why another mode runs than the desired one; empty: it does not.
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

// retiring says what of another mode the kernel still has, by family.
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

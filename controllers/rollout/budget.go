package rollout

import (
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// The documented defaults of spec.rollout.
const (
	defaultMaxUnavailable  = 1
	defaultDeadlineSeconds = 600
)

// percentages are the percentages that maxUnavailable may be.
var percentages = regexp.MustCompile(`^([1-9][0-9]?|100)%$`)

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
	b.Paused = s.Paused != nil && *s.Paused
	return b, errs
}

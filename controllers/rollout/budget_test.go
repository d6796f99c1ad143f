package rollout

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestBudgetOf: what is left out has the documented defaults, and what the API would not
// take today is named by its field.
func TestBudgetOf(t *testing.T) {
	most := func(v intstr.IntOrString) *v1alpha1.RolloutSettings {
		return &v1alpha1.RolloutSettings{MaxUnavailable: &v}
	}
	defaults := Budget{Generation: 7, MaxUnavailable: intstr.FromInt32(1), Deadline: 600 * time.Second}
	with := func(change func(*Budget)) Budget {
		b := defaults
		change(&b)
		return b
	}
	for name, c := range map[string]struct {
		settings *v1alpha1.RolloutSettings
		want     Budget // without an error
		wrong    string // the field
	}{
		"nothing":          {want: defaults},
		"nothing in it":    {settings: &v1alpha1.RolloutSettings{}, want: defaults},
		"a number":         {settings: most(intstr.FromInt32(3)), want: with(func(b *Budget) { b.MaxUnavailable = intstr.FromInt32(3) })},
		"one percent":      {settings: most(intstr.FromString("1%")), want: with(func(b *Budget) { b.MaxUnavailable = intstr.FromString("1%") })},
		"all":              {settings: most(intstr.FromString("100%")), want: with(func(b *Budget) { b.MaxUnavailable = intstr.FromString("100%") })},
		"a second":         {settings: &v1alpha1.RolloutSettings{ProgressDeadlineSeconds: new(int32(1))}, want: with(func(b *Budget) { b.Deadline = time.Second })},
		"paused":           {settings: &v1alpha1.RolloutSettings{Paused: new(true)}, want: with(func(b *Budget) { b.Paused = true })},
		"not paused":       {settings: &v1alpha1.RolloutSettings{Paused: new(false)}, want: defaults},
		"none":             {settings: most(intstr.FromInt32(0)), wrong: "spec.rollout.maxUnavailable"},
		"fewer than none":  {settings: most(intstr.FromInt32(-1)), wrong: "spec.rollout.maxUnavailable"},
		"zero percent":     {settings: most(intstr.FromString("0%")), wrong: "spec.rollout.maxUnavailable"},
		"more than all":    {settings: most(intstr.FromString("101%")), wrong: "spec.rollout.maxUnavailable"},
		"a number as text": {settings: most(intstr.FromString("3")), wrong: "spec.rollout.maxUnavailable"},
		"no time":          {settings: &v1alpha1.RolloutSettings{ProgressDeadlineSeconds: new(int32(0))}, wrong: "spec.rollout.progressDeadlineSeconds"},
		"time that is up":  {settings: &v1alpha1.RolloutSettings{ProgressDeadlineSeconds: new(int32(-600))}, wrong: "spec.rollout.progressDeadlineSeconds"},
	} {
		t.Run(name, func(t *testing.T) {
			got, errs := BudgetOf(7, c.settings, field.NewPath("spec", "rollout"))
			if c.wrong != "" {
				if len(errs) != 1 || errs[0].Field != c.wrong {
					t.Errorf("errors %v, want one about %s", errs, c.wrong)
				}
				return
			}
			if len(errs) > 0 || got != c.want {
				t.Errorf("got %+v, %v; want %+v", got, errs, c.want)
			}
		})
	}
}

package rollouts

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
)

// An agent that starts again long after a rollout, and whose first apply fails, reports
// that nothing is applied: it has its time again before that stops anything.
func TestAgentThatStartsLongAfterARollout(t *testing.T) {
	tests := []struct {
		name     string
		revision string
		started  time.Duration // before noon
		want     string
	}{
		{"nothing applied since it started just now", "", time.Minute, v1alpha1.ReasonProgressing},
		{"nor in all its time", "", 11 * time.Minute, v1alpha1.ReasonRolloutHalted},
		{"it was there before, and has applied other settings", "older", time.Minute, v1alpha1.ReasonRolloutHalted},
		{"it has run since before the change", "", 48 * time.Hour, v1alpha1.ReasonRolloutHalted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet("{}", t)
			f.policy(t, "edge", `{nodeSelector: {}, settings: {ipvs: {scheduler: lc}}}`)
			f.pool(t, "edge", 3)
			rules := f.giveTo(t, "edge-01", 24*time.Hour, v1alpha1.Cause{Name: "edge", Generation: 1})
			rules.Status.SettingsRevision = tt.revision
			rules.Status.Agent.StartTime = metav1.NewTime(controllertest.Noon.Add(-tt.started))
			reported(rules, metav1.ConditionFalse, v1alpha1.ReasonFailed, "the kernel is busy; the agent tries again")
			if c := meta.FindStatusCondition(f.statusOf("edge").Conditions, v1alpha1.ConditionReady); c.Reason != tt.want {
				t.Errorf("%s: %s; want %s", c.Reason, c.Message, tt.want)
			}
		})
	}
}

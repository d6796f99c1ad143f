package status

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// programmedCase is what makes a row apply, and what is reported then.
type programmedCase struct {
	title, want string
	edit        func(*desired.Snapshot, *Facts)
}

// programmedRows are what makes each row of the table of Programmed apply, in
// the table's order. AgentNotResponding, before all of them, is the
// controller's. There is no row Removed yet: no agent cleans up because of
// removalPolicy.
var programmedRows = []programmedCase{
	{"another proxy", "False ConflictingProxy", func(_ *desired.Snapshot, f *Facts) { f.OtherProxy = "x answers" }},
	{"not accepted", "False Failed", func(s *desired.Snapshot, _ *Facts) {
		s.Rejection = &desired.Rejection{Reason: v1alpha1.ReasonInvalid, Message: "m"}
	}},
	{"the last apply failed", "False Failed", func(s *desired.Snapshot, _ *Facts) { s.Err = errors.New("locked") }},
	{"no complete set yet", "False Pending", func(s *desired.Snapshot, _ *Facts) { s.Done = false }},
	{"a change waits", "False Pending", func(s *desired.Snapshot, _ *Facts) { s.OldestPending = s.Now.Add(-auditPatience - time.Second) }},
	{"Audit", "False AuditDiffers", func(s *desired.Snapshot, f *Facts) {
		f.Audit, s.Difference = true, &dataplane.Difference{Count: 1, Examples: []string{"x"}}
	}},
	{"a Service rejected", "True SomeServicesRejected", func(s *desired.Snapshot, _ *Facts) {
		s.Rejected = map[dataplane.ServiceName]string{agenttest.Name("a"): "x"}
	}},
	{"vanished", "True Retained", func(s *desired.Snapshot, _ *Facts) {
		s.Retained, s.RetainedSince = []dataplane.ServiceName{agenttest.Name("a")}, s.Now.Add(-patience)
	}},
	{"unconfirmed", "True Retained", func(s *desired.Snapshot, _ *Facts) { s.UnconfirmedSince = s.Now.Add(-patience) }},
	{"all is well", "True Programmed", func(*desired.Snapshot, *Facts) {}},
}

// TestNoStatusIsDueBecauseTimePasses: what is written when nothing happens, every
// agent writes for ever.
func TestPassingTimeMakesNoStatusDue(t *testing.T) {
	rows := slices.Clone(programmedRows)
	for title, r := range map[string]desired.Restored{
		"restored Services": {Services: true}, "own object restored": {Rules: true},
		"restored after a reboot": {Services: true, Rules: true, Rebooted: true},
	} {
		rows = append(rows, programmedCase{title, "", func(s *desired.Snapshot, _ *Facts) {
			s.Restored, s.UnconfirmedSince = r, s.Now.Add(-patience)
			s.Restored.Written, s.Restored.Why = s.Now.Add(-time.Hour), "forbidden"
		}})
	}
	rows = append(rows, programmedCase{"another proxy has gone", "", func(s *desired.Snapshot, f *Facts) {
		f.OtherProxy, f.OtherGone, f.OtherWait = "x answers", s.Now.Add(-time.Second), 10*time.Second
	}}, programmedCase{"Audit, the other proxy has gone", "", func(s *desired.Snapshot, f *Facts) {
		f.Audit, f.OtherProxy, f.OtherGone, f.OtherWait = true, "x answers", s.Now.Add(-time.Second), 10*time.Second
	}})
	for _, row := range rows {
		s, f := programmed(), facts4
		row.edit(&s, &f)
		stored := Build(s, f, nil)
		for _, pass := range []time.Duration{time.Second, time.Minute, 7 * time.Hour} {
			s.Now = s.Now.Add(pass)
			if now := Build(s, f, stored.Conditions); urgent(&now, &stored) != notAtAll {
				t.Errorf("%s: %v later the status is due:\n%s", row.title, pass, cmp.Diff(stored, now))
			}
		}
	}
}

// Of two rows that apply, the first is reported.
func TestFirstRowOfProgrammedWins(t *testing.T) {
	for i, first := range programmedRows {
		for _, second := range programmedRows[i:] {
			s, f := programmed(), facts4
			second.edit(&s, &f)
			first.edit(&s, &f)
			want := first.want
			if first.title == "another proxy" && f.Audit {
				want = second.want // with Audit it is no conflict
			}
			c := meta.FindStatusCondition(Build(s, f, nil).Conditions, v1alpha1.ConditionProgrammed)
			if got := string(c.Status) + " " + c.Reason; got != want {
				t.Errorf("%s and %s: %s, want %s", first.title, second.title, got, want)
			}
		}
	}
}

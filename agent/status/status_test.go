package status

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/messages"
)

var facts4 = Facts{Version: "v0.1.0", Started: agenttest.Epoch, Kernel: "6.18.0", Iptables: "1.8.9 (nf_tables)", Formats: v1alpha1.FormatVersions(), Families: []dataplane.Family{dataplane.IPv4}}

// programmed is a snapshot of an agent that has done all there is to do.
func programmed() desired.Snapshot {
	return desired.Snapshot{
		Now: agenttest.Epoch.Add(time.Hour), Own: &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u", Generation: 88, ResourceVersion: "100"}},
		Exists: true, Listed: true, Done: true, InventoryKnown: true,
		Families: map[dataplane.Family]desired.FamilySnapshot{dataplane.IPv4: {Done: true}},
		Applied: desired.Applied{Version: "190233", Generation: 88, SettingsRevision: "7d1f0a9c", Mode: v1alpha1.ModeIPTables,
			LastSync: &v1alpha1.SyncReport{Time: Seconds(agenttest.Epoch), DurationMilliseconds: 21, Kind: v1alpha1.SyncPartial, ServicesChanged: 1}},
		Services: 412, Endpoints: 3980, Local: 37,
		Kernel: &desired.KernelCount{Counts: dataplane.Counts{dataplane.Chains: 4815, dataplane.Rules: 13021}, At: agenttest.Epoch}, Difference: &dataplane.Difference{},
	}
}

func TestConditions(t *testing.T) {
	unsupportedErr := fmt.Errorf("iptables is missing: apt-get install iptables: %w", dataplane.ErrUnsupported)
	ago := func(d time.Duration) time.Time { return agenttest.Epoch.Add(time.Hour).Add(-d) }
	tests := []struct {
		name       string
		edit       func(*desired.Snapshot, *Facts)
		accepted   string
		programmed string
		message    string // in that of Programmed
	}{
		{"all is well", func(*desired.Snapshot, *Facts) {}, "True Accepted", "True Programmed", "desired state is programmed."},
		{"mode Userspace", func(s *desired.Snapshot, _ *Facts) { s.Userspace = true }, "True Accepted", "True Programmed", "programmed; endpoints see this node's address as their client."},
		{"another proxy", func(s *desired.Snapshot, f *Facts) { f.OtherProxy = "ipvs answers" }, "True Accepted", "False ConflictingProxy", "(ipvs answers): the agent writes nothing"},
		{"another proxy that has just gone", func(s *desired.Snapshot, f *Facts) {
			f.OtherProxy, f.OtherGone, f.OtherWait = "ipvs answers", ago(time.Second), 10*time.Second
		}, "True Accepted", "False ConflictingProxy", "has not been detected since 2026-11-20T08:59:59Z. The agent writes nothing and opens none of the proxy's ports until 10s after that"},
		{"another proxy does not take over everything", func(s *desired.Snapshot, f *Facts) {
			f.OtherProxy, f.Remaining = "iptables answers", "nf_tables table ip nodeproxy"
		}, "True Accepted", "False ConflictingProxy", `outdated rules of nodeproxy first (nf_tables table ip nodeproxy): the agent removes them once that proxy reports at http://127.0.0.1:10249/metrics`},
		{"another proxy does not take over everything, in Audit", func(s *desired.Snapshot, f *Facts) {
			s.Audit, f.Audit, f.OtherProxy, f.Remaining = true, true, "iptables answers", "nf_tables table ip nodeproxy"
		}, "True Accepted", "True AuditInSync", `(iptables answers); packets still meet outdated rules of nodeproxy first (nf_tables table ip nodeproxy): the agent removes them once`},
		{"another proxy comes before a failure", func(s *desired.Snapshot, f *Facts) { f.OtherProxy, s.Err = "ipvs", errors.New("x") }, "True Accepted", "False ConflictingProxy", ""},
		{"another proxy, and not accepted", func(s *desired.Snapshot, f *Facts) {
			f.OtherProxy, s.Rejection = "ipvs", &desired.Rejection{Reason: "Unsupported", Message: "m"}
		}, "False Unsupported", "False ConflictingProxy", ""},
		{"not accepted", func(s *desired.Snapshot, _ *Facts) {
			s.Rejection = &desired.Rejection{Reason: "Unsupported", Message: "spec.settings.mode: IPVS is not supported"}
		}, "False Unsupported", "False Failed", "spec.settings.mode"},
		{"not accepted comes before Pending", func(s *desired.Snapshot, _ *Facts) {
			s.Rejection, s.Done = &desired.Rejection{Reason: "Invalid", Message: "m"}, false
		}, "False Invalid", "False Failed", ""},
		{"the last apply failed", func(s *desired.Snapshot, _ *Facts) { s.Err = errors.New("IPv4: table nat is locked") }, "True Accepted", "False Failed", "IPv4: table nat is locked. The rest is up to date or unchanged, and the agent retries."},
		{"the kernel cannot do it", func(s *desired.Snapshot, _ *Facts) { s.Err = unsupportedErr }, "False Unsupported", "False Failed", "apt-get install iptables"},
		{"no first set, no list", func(s *desired.Snapshot, _ *Facts) { s.Done, s.Listed = false, false }, "True Accepted", "False Pending", "waits for the list of ServiceProxyRules"},
		{"no first set", func(s *desired.Snapshot, _ *Facts) { s.Done = false }, "True Accepted", "False Pending", "since the agent started"},
		{"a change waits for 10 s", func(s *desired.Snapshot, _ *Facts) { s.OldestPending = ago(10 * time.Second) }, "True Accepted", "True Programmed", ""},
		{"a change waits for longer", func(s *desired.Snapshot, _ *Facts) { s.OldestPending = ago(10*time.Second + 1) }, "True Accepted", "False Pending", "pending since 2026-11-20T08:59:49Z"},
		{"rejected Services", func(s *desired.Snapshot, _ *Facts) {
			s.Rejected = map[dataplane.ServiceName]string{agenttest.Name("b"): "line 3", agenttest.Name("a"): "line 2"}
		}, "True Accepted", "True SomeServicesRejected", "The kernel rejects the rules of 2 Services and has those of all others; fix the cause in the Service or on the node: shop/a: line 2; shop/b: line 3."},
		{"rejected Services come before retained ones", func(s *desired.Snapshot, _ *Facts) {
			s.Rejected = map[dataplane.ServiceName]string{agenttest.Name("b"): "line 3"}
			s.Retained, s.RetainedSince = []dataplane.ServiceName{agenttest.Name("a")}, ago(time.Minute)
		}, "True Accepted", "True SomeServicesRejected", ""},
		{"vanished for less than 10 s", func(s *desired.Snapshot, _ *Facts) {
			s.Retained, s.RetainedSince = []dataplane.ServiceName{agenttest.Name("a")}, ago(10*time.Second-1)
		}, "True Accepted", "True Programmed", ""},
		{"vanished for 10 s", func(s *desired.Snapshot, _ *Facts) {
			s.Retained, s.RetainedSince = []dataplane.ServiceName{agenttest.Name("a"), agenttest.Name("b"), agenttest.Name("c"), agenttest.Name("d")}, ago(10*time.Second)
		}, "True Accepted", "True Retained", "of shop/a, shop/b, shop/c and 1 more have vanished although their Services have not ended: "},
		{"retained, and a warning", func(s *desired.Snapshot, _ *Facts) {
			s.Retained, s.RetainedSince, s.Warnings = []dataplane.ServiceName{agenttest.Name("a")}, ago(time.Minute), []string{"x cannot be set", "y neither"}
		}, "True Accepted", "True Retained", ". Restrictions: x cannot be set; y neither"},
		{"restored and retained, without NodeProxy, and a warning", func(s *desired.Snapshot, _ *Facts) {
			s.Restored = desired.Restored{Rules: true, Written: ago(time.Hour), Why: "forbidden"}
			s.Retained, s.RetainedSince = []dataplane.ServiceName{agenttest.Name("a")}, ago(time.Minute)
			s.UnconfirmedSince, s.InventoryKnown, s.Warnings = ago(time.Minute), false, []string{"x cannot be set"}
		}, "True Accepted", "True Retained", "The NodeProxyRules of this node could not be read from the API since the agent started (forbidden): until the API answers, the node uses the checkpoint on its disk, written 2026-11-20T08:00:00Z: what the kernel lacks is repaired, nothing is changed or removed; " +
			"the ServiceProxyRules of shop/a have vanished although their Services have not ended: their rules are retained until the objects return or the controller confirms that the Services are gone; " +
			`there is no NodeProxy "cluster" with a status.inventory: no rules are removed until there is; create the NodeProxy, and check that the controller runs. Restrictions: x cannot be set`},
		{"retained, the inventory differs, and a warning", func(s *desired.Snapshot, _ *Facts) {
			s.Retained, s.RetainedSince = []dataplane.ServiceName{agenttest.Name("a")}, ago(time.Minute)
			s.UnconfirmedSince, s.Warnings = ago(time.Minute), []string{"x cannot be set"}
		}, "True Accepted", "True Retained", "the Services are gone; the list of ServiceProxyRules differs from status.inventory of the NodeProxy: no rules are removed until they agree; if this lasts, check that the controller runs. Restrictions: x cannot be set"},
		{"unconfirmed for less than 10 s", func(s *desired.Snapshot, _ *Facts) { s.UnconfirmedSince = ago(9 * time.Second) }, "True Accepted", "True Programmed", ""},
		{"the inventory differs", func(s *desired.Snapshot, _ *Facts) { s.UnconfirmedSince = ago(time.Minute) }, "True Accepted", "True Retained", "status.inventory"},
		{"leftovers of another proxy", func(_ *desired.Snapshot, f *Facts) { f.Leftovers = []string{"device kube-ipvs0 is left"} }, "True Accepted", "True Programmed", ". Restrictions: device kube-ipvs0 is left"},
		{"Audit, no other proxy", func(_ *desired.Snapshot, f *Facts) { f.Audit = true }, "True Accepted", "True AuditInSync", "no program maintains the rules"},
		{"Audit beside another proxy is no conflict", func(_ *desired.Snapshot, f *Facts) { f.Audit, f.OtherProxy = true, "x answers" }, "True Accepted", "True AuditInSync", "another proxy runs on this node (x answers)"},
		{"Audit, another proxy has gone", func(_ *desired.Snapshot, f *Facts) {
			f.Audit, f.OtherProxy, f.OtherGone = true, "x answers", ago(time.Second)
		}, "True Accepted", "True AuditInSync", "has not been detected since 2026-11-20T08:59:59Z"},
		{"Audit differs", func(s *desired.Snapshot, f *Facts) {
			f.Audit, s.Difference = true, &dataplane.Difference{Count: 3, Examples: []string{"a", "b", "c"}}
		}, "True Accepted", "False AuditDiffers", "differs from the desired state, see status.difference"},
		{"Audit comes before rejected and retained Services", func(s *desired.Snapshot, f *Facts) {
			f.Audit, s.Retained, s.RetainedSince = true, []dataplane.ServiceName{agenttest.Name("a")}, ago(time.Minute)
			s.Rejected = map[dataplane.ServiceName]string{agenttest.Name("b"): "line 3"}
		}, "True Accepted", "True AuditInSync", ""},
		{"Audit, not compared yet", func(s *desired.Snapshot, f *Facts) { f.Audit, s.Done = true, false }, "True Accepted", "False Pending", "has not been compared"},
		{"Audit, a change waits", func(s *desired.Snapshot, f *Facts) { f.Audit, s.OldestPending = true, ago(30*time.Second+1) }, "True Accepted", "False Pending", "waiting for a comparison"},
		{"Audit, a change waits", func(s *desired.Snapshot, f *Facts) { f.Audit, s.OldestPending = true, ago(30*time.Second) }, "True Accepted", "True AuditInSync", ""},
		{"Audit, not readable", func(s *desired.Snapshot, f *Facts) { f.Audit, s.Err = true, errors.New("iptables-save: no") }, "True Accepted", "False Failed", "cannot be compared with the desired state: iptables-save: no"},
		{"Audit, not accepted", func(s *desired.Snapshot, f *Facts) {
			f.Audit, s.Rejection = true, &desired.Rejection{Reason: "Invalid", Message: "m"}
		}, "False Invalid", "False Failed", ""},
		{"no NodeProxy", func(s *desired.Snapshot, _ *Facts) { s.UnconfirmedSince, s.InventoryKnown = ago(time.Minute), false }, "True Accepted", "True Retained", `no NodeProxy "cluster"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, f := programmed(), facts4
			tt.edit(&s, &f)
			status := Build(s, f, nil)
			show := func(kind string) string {
				c := meta.FindStatusCondition(status.Conditions, kind)
				if c == nil {
					return "absent"
				}
				if c.Message == "" || c.LastTransitionTime.IsZero() || c.ObservedGeneration == 0 {
					t.Errorf("incomplete condition %+v", c)
				}
				return string(c.Status) + " " + c.Reason
			}
			if got := show(v1alpha1.ConditionAccepted); got != tt.accepted {
				t.Errorf("Accepted: got %s, want %s", got, tt.accepted)
			}
			if got := show(v1alpha1.ConditionProgrammed); got != tt.programmed {
				t.Errorf("Programmed: got %s, want %s", got, tt.programmed)
			}
			if m := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed).Message; !strings.Contains(m, tt.message) {
				t.Errorf("message %q lacks %q", m, tt.message)
			}
			for _, c := range status.Conditions {
				messages.Check(t, c.Message)
			}
			conflict := "absent"
			if f.Conflict() != "" {
				conflict = "True ConflictingProxy"
			}
			if got := show(v1alpha1.ConditionConflictingProxy); got != conflict {
				t.Errorf("ConflictingProxy: got %s, want %s", got, conflict)
			}
		})
	}
}

// TestCombinedMessagesAreShort: whatever applies together, and whatever errors contain.
func TestCombinedMessagesAreShort(t *testing.T) {
	const others = "iptables: Permission denied (you must be root).\nPerhaps iptables needs to be upgraded. It may help."
	type edit = func(*desired.Snapshot, *Facts)
	situations := map[string]edit{
		"restrictions": func(s *desired.Snapshot, f *Facts) {
			s.Warnings, f.Warnings, f.Leftovers = []string{others}, []string{"port 10256 is in use"}, []string{"device kube-ipvs0 is left"}
		},
		"pending cleanups": func(s *desired.Snapshot, _ *Facts) {
			s.PendingCleanups = []string{"3 connections still use rules of mode IPVS"}
		},
		"drift": func(_ *desired.Snapshot, f *Facts) { f.Drift.Message = "Another program modifies rules. Stop it." },
		"checkpoint": func(s *desired.Snapshot, _ *Facts) {
			s.Restored = desired.Restored{Services: true, Rules: true, Rebooted: true, Written: s.Now, Why: others}
		},
		"another proxy with outdated rules": func(_ *desired.Snapshot, f *Facts) { f.OtherProxy, f.Remaining = "x answers", "table ip nodeproxy" },
		"another proxy that has gone":       func(s *desired.Snapshot, f *Facts) { f.OtherProxy, f.OtherGone = "x answers", s.Now },
		"no answer":                         func(_ *desired.Snapshot, f *Facts) { f.Unanswered = true },
		"removal":                           func(s *desired.Snapshot, f *Facts) { s.Removal.Requested, f.Removing = true, true },
		"failed removal": func(s *desired.Snapshot, f *Facts) {
			s.Removal, f.Removing = desired.Removal{Requested: true, Err: errors.New(others)}, true
		},
		"removed": func(s *desired.Snapshot, f *Facts) {
			s.Removal, f.Removing = desired.Removal{Requested: true, Done: true, Message: desired.RemovedMessage}, true
		},
		"invalid": func(s *desired.Snapshot, _ *Facts) {
			s.Rejection = &desired.Rejection{Reason: v1alpha1.ReasonInvalid, Message: "spec.settings.mode: wrong; " + desired.Meanwhile}
		},
		"unsupported": func(s *desired.Snapshot, _ *Facts) { s.Err = fmt.Errorf("%w: %s", dataplane.ErrUnsupported, others) },
		"fallback":    func(s *desired.Snapshot, _ *Facts) { s.Mode.Lacks = "IPv4: no such module" },
		"conntrack": func(_ *desired.Snapshot, f *Facts) {
			f.Tracking.Report = &v1alpha1.ConntrackReport{Entries: 95, Max: 100, UsagePercent: 95}
		},
		"rejected": func(s *desired.Snapshot, _ *Facts) {
			s.Rejected = map[dataplane.ServiceName]string{agenttest.Name("a"): others}
		},
	}
	for _, row := range programmedRows {
		situations[row.title] = row.edit
	}
	for _, first := range situations {
		for _, second := range situations {
			for _, audit := range []bool{false, true} {
				s, f := programmed(), facts4
				first(&s, &f)
				second(&s, &f)
				f.Audit = f.Audit || audit
				for _, c := range Build(s, f, nil).Conditions {
					messages.Check(t, c.Message)
				}
			}
		}
	}
}

// TestNoNamespaceHidesRejectedServicesOfOthers: however many of one are rejected.
func TestNoNamespaceHidesRejectedServicesOfOthers(t *testing.T) {
	var s desired.Snapshot
	s.Rejected, s.Shaped = map[dataplane.ServiceName]string{}, map[dataplane.ServiceName]bool{}
	for i := range 30 {
		at := dataplane.ServiceName{Namespace: "a", Name: fmt.Sprintf("s%02d", i)}
		s.Rejected[at], s.Shaped[at] = "no", true
	}
	for _, namespace := range []string{"b", "c"} {
		at := dataplane.ServiceName{Namespace: namespace, Name: "s"}
		s.Rejected[at], s.Shaped[at] = "no", true
	}
	got := rejectedExamples(&s)
	if diff := cmp.Diff([]string{"a/s00: no", "b/s: no", "c/s: no", "a/s01: no"}, got[:4]); diff != "" || len(got) != dataplane.MaxExamples {
		t.Errorf("%d examples, the first ones (-want +got):\n%s", len(got), diff)
	}
}

// TestRejectedServicesShapedByPoliciesComeFirst, however many others there are: the
// controller stops a policy's change by them.
func TestRejectedServicesShapedByPoliciesComeFirst(t *testing.T) {
	s := programmed()
	s.Rejected = map[dataplane.ServiceName]string{}
	for i := range 12 {
		s.Rejected[agenttest.Name(fmt.Sprintf("s%02d", i))] = "no"
	}
	s.Shaped = map[dataplane.ServiceName]bool{agenttest.Name("s11"): true}
	got := Build(s, facts4, nil).Rejected
	if got.Count != 12 || got.Examples[0] != agenttest.Name("s11").String()+": no" || got.Examples[1] != agenttest.Name("s00").String()+": no" {
		t.Errorf("%d, %q", got.Count, got.Examples)
	}
}

// TestSuspectedServicesAreNotNamed: the controller halts policies by those that are.
func TestSuspectedServicesAreNotNamed(t *testing.T) {
	s := programmed()
	s.Rejected = map[dataplane.ServiceName]string{agenttest.Name("bad"): "no", agenttest.Name("other"): "no"}
	s.Suspected = map[dataplane.ServiceName]bool{agenttest.Name("other"): true}
	got := Build(s, facts4, nil).Rejected
	if got.Count != 2 || len(got.Examples) != 1 || got.Examples[0] != agenttest.Name("bad").String()+": no" {
		t.Errorf("%d, %q", got.Count, got.Examples)
	}
	s.Suspected[agenttest.Name("bad")] = true
	if text := rejectedText(&s); !strings.Contains(text, "one by one") {
		t.Error(text)
	}
}

func TestStatusCounts(t *testing.T) {
	s := programmed()
	s.Rejected = map[dataplane.ServiceName]string{}
	for i := range 12 {
		s.Rejected[agenttest.Name(fmt.Sprintf("s%02d", i))] = strings.Repeat("x", 300)
	}
	s.Retained = []dataplane.ServiceName{agenttest.Name("a")}
	s.Difference = &dataplane.Difference{Count: 1, Examples: []string{"chain KUBE-SERVICES missing in nat"}}
	got := Build(s, facts4, nil)
	if n := len(got.Rejected.Examples); n != 10 || len(got.Rejected.Examples[0]) != wording.MaxExample {
		t.Errorf("%d examples of rejected Services, the first with %d bytes", n, len(got.Rejected.Examples[0]))
	}
	got.Rejected.Examples, got.Conditions = nil, nil
	want := v1alpha1.NodeProxyRulesStatus{
		ObservedGeneration: 88, SettingsRevision: "7d1f0a9c", Mode: "IPTables", Families: []string{"IPv4"},
		AppliedResourceVersion: "190233", Services: 412, Endpoints: 3980, LocalEndpoints: 37, Retained: 1,
		Rejected:   &v1alpha1.RejectedServices{Count: 12},
		Kernel:     &v1alpha1.KernelCounts{VerifiedTime: Seconds(agenttest.Epoch), Chains: 4815, Rules: 13021},
		LastSync:   &v1alpha1.SyncReport{Time: Seconds(agenttest.Epoch), DurationMilliseconds: 21, Kind: "Partial", ServicesChanged: 1},
		Difference: &v1alpha1.DifferenceReport{Count: 1, Examples: []string{"chain KUBE-SERVICES missing in nat"}},
		Drift:      &v1alpha1.DriftReport{},
		Agent: &v1alpha1.AgentReport{Version: "v0.1.0", StartTime: Seconds(agenttest.Epoch), Kernel: "6.18.0",
			IPTables: "1.8.9 (nf_tables)", FormatVersions: v1alpha1.FormatVersions()},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

func TestTransitionTimes(t *testing.T) {
	old := metav1.NewTime(agenttest.Epoch.Add(-time.Hour))
	former := []metav1.Condition{
		{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: "Accepted", LastTransitionTime: old},
		{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: "Retained", LastTransitionTime: old},
		{Type: v1alpha1.ConditionConflictingProxy, Status: metav1.ConditionTrue, Reason: "ConflictingProxy", LastTransitionTime: old},
	}
	s := programmed()
	times := map[string]metav1.Time{}
	for _, c := range Build(s, facts4, former).Conditions {
		times[c.Type] = c.LastTransitionTime
		if c.Type == v1alpha1.ConditionConflictingProxy && c.Status != metav1.ConditionFalse {
			t.Errorf("a conflict that has ended is %s", c.Status)
		}
	}
	want := map[string]metav1.Time{
		v1alpha1.ConditionAccepted: old, v1alpha1.ConditionProgrammed: old, // the reason alone has changed
		v1alpha1.ConditionConflictingProxy: Seconds(s.Now),
	}
	if diff := cmp.Diff(want, times); diff != "" {
		t.Errorf("transition times (-want +got):\n%s", diff)
	}
}

func half() float64 { return 0.5 }

func TestWhenStatusIsWritten(t *testing.T) {
	type world struct {
		s      desired.Snapshot
		f      Facts
		b      *agenttest.Board
		writer *Writer
		clock  *clocktesting.FakePassiveClock
	}
	// step lets time pass and reports whether the status was written.
	step := func(w *world, pass time.Duration) bool {
		w.s.Now = w.s.Now.Add(pass)
		w.clock.SetTime(w.s.Now)
		w.s.Own = w.b.Stored
		return w.writer.Write(context.Background(), w.s, w.f)
	}
	start := func() *world {
		s := programmed()
		w := &world{s: s, f: facts4, b: &agenttest.Board{Stored: s.Own}, clock: clocktesting.NewFakePassiveClock(s.Now)}
		w.writer = &Writer{clock: w.clock, write: w.b.Write, log: logr.Discard(), started: s.Now, share: half}
		return w
	}
	// written returns a world whose status has just been written.
	written := func(t *testing.T) *world {
		t.Helper()
		w := start()
		if !step(w, 0) {
			t.Fatal("the first status is not written")
		}
		return w
	}
	expect := func(t *testing.T, w *world, pass time.Duration, want bool) {
		t.Helper()
		if got := step(w, pass); got != want {
			t.Errorf("%v later: written %v, want %v", pass, got, want)
		}
	}
	t.Run("nothing new, nothing written", func(t *testing.T) {
		w := written(t)
		expect(t, w, time.Second, false)
		expect(t, w, 24*time.Hour, false)
	})
	t.Run("a reason at once", func(t *testing.T) {
		w := written(t)
		w.s.Err = errors.New("locked")
		expect(t, w, 0, true)
		w.s.Err = nil
		expect(t, w, 0, true)
	})
	t.Run("the settings revision at once", func(t *testing.T) {
		w := written(t)
		w.s.Applied.SettingsRevision = "0"
		expect(t, w, 0, true)
	})
	t.Run("a change of local endpoints within 5 s", func(t *testing.T) {
		w := written(t)
		w.s.Applied.Generation = 89
		expect(t, w, time.Second, false)
		expect(t, w, 3999*time.Millisecond, false)
		expect(t, w, time.Millisecond, true)
		w.s.Applied.Generation = 90
		expect(t, w, 10*time.Second, true)
	})
	t.Run("another message within 5 s", func(t *testing.T) {
		w := written(t)
		w.s.Err = errors.New("locked")
		expect(t, w, 0, true)
		w.s.Err = errors.New("locked by another")
		expect(t, w, time.Second, false)
		expect(t, w, 4*time.Second, true)
	})
	t.Run("other warnings within 5 s", func(t *testing.T) {
		w := written(t)
		w.s.Warnings = []string{"net.ipv4.ip_forward is 0: set it to 1"}
		expect(t, w, 4*time.Second, false)
		expect(t, w, time.Second, true)
		w.s.Warnings = nil
		expect(t, w, 4*time.Second, false)
		expect(t, w, time.Second, true)
	})
	t.Run("other families within 5 s", func(t *testing.T) {
		w := written(t)
		w.s.Families = nil
		expect(t, w, 4*time.Second, false)
		expect(t, w, time.Second, true)
	})
	t.Run("another number of local endpoints within 5 s", func(t *testing.T) {
		w := written(t)
		w.s.Local++
		expect(t, w, 4*time.Second, false)
		expect(t, w, time.Second, true)
	})
	t.Run("counts alone after 5 min", func(t *testing.T) {
		w := written(t)
		w.s.Services++
		expect(t, w, 5*time.Minute-time.Second, false)
		expect(t, w, time.Second, true)
		w.s.Services++
		expect(t, w, time.Second, false)
		w.s.Applied.SettingsRevision = "0" // writes the counts too
		expect(t, w, 0, true)
		expect(t, w, time.Hour, false)
	})
	t.Run("a repair within 5 s, many once a minute", func(t *testing.T) {
		w := written(t)
		w.f.Drift.Repairs = 1
		expect(t, w, 4*time.Second, false)
		expect(t, w, time.Second, true)
		w.f.Drift.Repairs = 2
		expect(t, w, 59*time.Second, false)
		w.f.Drift.Repairs = 3
		expect(t, w, time.Second, true)
		expect(t, w, time.Hour, false)
	})
	t.Run("an endpoint that fails within 5 s, others once a minute", func(t *testing.T) {
		w := written(t)
		fails := func(endpoint string, failed int64) {
			w.f.Userspace = &v1alpha1.UserspaceReport{Failing: 1, Endpoints: []v1alpha1.FailingEndpoint{
				{Service: "shop/cart", Port: "80/TCP", Endpoint: endpoint, Reason: v1alpha1.EndpointRejects, Failed: failed},
			}}
		}
		fails("10.244.1.7:8080", 3)
		expect(t, w, 4*time.Second, false)
		expect(t, w, time.Second, true)
		fails("10.244.1.8:8080", 3)
		expect(t, w, 59*time.Second, false)
		expect(t, w, time.Second, true)
		fails("10.244.1.8:8080", 4)
		expect(t, w, 5*time.Minute-time.Second, false) // a count
		expect(t, w, time.Second, true)
		fails("10.244.1.7:8080", 4)
		expect(t, w, 5*time.Second, true)
		w.f.Userspace = nil // none fails any more
		expect(t, w, 4*time.Second, false)
		expect(t, w, time.Second, true)
	})
	t.Run("another difference within 5 s, many once a minute", func(t *testing.T) {
		w := written(t)
		w.f.Audit = true
		w.s.Difference = &dataplane.Difference{Count: 1, Examples: []string{"a"}}
		expect(t, w, 0, true) // its reason
		w.s.Difference = &dataplane.Difference{Count: 2, Examples: []string{"a", "b"}}
		expect(t, w, 4*time.Second, false)
		expect(t, w, time.Second, true)
		writes := w.b.Writes
		for i := range 59 { // wrong settings, and rules that come and go
			w.s.Difference = &dataplane.Difference{Count: 3 + i, Examples: []string{fmt.Sprint(i)}}
			expect(t, w, time.Second, false)
		}
		expect(t, w, time.Second, true)
		if got := w.b.Stored.Status.Difference; w.b.Writes != writes+1 || got.Count != 61 {
			t.Errorf("%d writes in a minute, the last reports %+v", w.b.Writes-writes, got)
		}
		w.s.Difference.Examples = []string{"b"}
		expect(t, w, time.Minute, false) // a count
	})
	t.Run("changes by another writer, at most once a second", func(t *testing.T) {
		w := written(t)
		w.b.Edit(func(s *v1alpha1.NodeProxyRulesStatus) { s.Services = 7 })
		expect(t, w, 0, false)
		expect(t, w, time.Second, true)
		if w.b.Stored.Status.Services != 412 {
			t.Errorf("services %d", w.b.Stored.Status.Services)
		}
		w.b.Edit(func(s *v1alpha1.NodeProxyRulesStatus) { s.Conditions[1].Status = metav1.ConditionUnknown })
		expect(t, w, time.Minute, true)
		w.b.Edit(func(s *v1alpha1.NodeProxyRulesStatus) { s.Conditions = nil })
		expect(t, w, 500*time.Millisecond, false)
		expect(t, w, 500*time.Millisecond, true)
		expect(t, w, time.Minute, false)
	})
	t.Run("another writer's condition stays", func(t *testing.T) {
		w := written(t)
		w.b.Edit(func(s *v1alpha1.NodeProxyRulesStatus) {
			s.Conditions = append([]metav1.Condition{{Type: "Inspected", Status: metav1.ConditionTrue}}, s.Conditions...)
		})
		expect(t, w, time.Minute, false)
	})
	t.Run("an older watch event is not taken for an edit", func(t *testing.T) {
		w := written(t)
		stale := programmed().Own
		w.s.Now = w.s.Now.Add(time.Minute)
		w.s.Own = stale
		if w.writer.Write(context.Background(), w.s, w.f) {
			t.Error("written because of a version from before the last write")
		}
	})
	t.Run("failed writes are tried again ever more seldom", func(t *testing.T) {
		w := start()
		w.b.Err = errors.New("no API")
		expect(t, w, 0, false)
		// 0.75 of 5, 10, 20 and then 30 s, by share.
		for _, ms := range []time.Duration{3750, 7500, 15000, 22500, 22500} {
			w.b.Tries = 0
			expect(t, w, ms*time.Millisecond-time.Millisecond, false)
			if w.b.Tries != 0 {
				t.Errorf("tried again before %v ms", int64(ms))
			}
			expect(t, w, time.Millisecond, false)
			if w.b.Tries != 1 {
				t.Errorf("%d tries after %v ms", w.b.Tries, int64(ms))
			}
		}
		w.b.Err = nil
		expect(t, w, 22500*time.Millisecond, true)
		w.s.Services++
		w.b.Err = errors.New("no API")
		expect(t, w, countsPause, false)
		w.b.Err = nil
		expect(t, w, 3749*time.Millisecond, false)
		expect(t, w, time.Millisecond, true) // the pauses begin anew
	})
	t.Run("an object made anew is written at once", func(t *testing.T) {
		w := written(t)
		w.b.Stored = &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "other", Generation: 1, ResourceVersion: "900"}}
		expect(t, w, 0, true)
	})
	t.Run("no object, nothing written", func(t *testing.T) {
		w := start()
		w.s.Exists = false
		expect(t, w, time.Hour, false)
	})
	t.Run("a restart does not touch a stored status for 10 s", func(t *testing.T) {
		w := written(t)
		w.writer = &Writer{clock: w.clock, write: w.b.Write, log: logr.Discard(), started: w.s.Now, share: half}
		w.s.Done, w.s.Applied = false, desired.Applied{}
		expect(t, w, 9*time.Second, false)
		expect(t, w, time.Second, true)
		if c := meta.FindStatusCondition(w.b.Stored.Status.Conditions, v1alpha1.ConditionProgrammed); c.Reason != v1alpha1.ReasonPending {
			t.Errorf("reason %s", c.Reason)
		}
	})
	t.Run("a restart beside another proxy reports it at once", func(t *testing.T) {
		w := written(t)
		w.writer = &Writer{clock: w.clock, write: w.b.Write, log: logr.Discard(), started: w.s.Now, share: half}
		w.s.Done, w.s.Applied, w.f.OtherProxy = false, desired.Applied{}, "iptables"
		expect(t, w, 0, true)
	})
	t.Run("a fresh node reports Pending at once", func(t *testing.T) {
		w := start()
		w.s.Done, w.s.Applied = false, desired.Applied{}
		expect(t, w, 0, true)
	})
}

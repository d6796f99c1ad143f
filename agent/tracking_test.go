package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/metrics"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/agent/syncer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// fakeTracking is a kernel that does what the tests decide.
type fakeTracking struct {
	tuned      conntrack.Tuned
	asked      []int32 // the timeouts of UDP that it was asked for
	onTune     func()
	statistics conntrack.Statistics
	failure    error
	readings   int
}

func (f *fakeTracking) Tune(s *v1alpha1.ConntrackSettings) conntrack.Tuned {
	f.asked = append(f.asked, *s.UDPTimeoutSeconds)
	if f.onTune != nil {
		f.onTune()
	}
	return f.tuned
}

func (f *fakeTracking) Statistics() (conntrack.Statistics, error) {
	f.readings++
	return f.statistics, f.failure
}

func (f *fakeTracking) expect(t *testing.T, when string, asked ...int32) {
	t.Helper()
	if diff := cmp.Diff(asked, f.asked); diff != "" {
		t.Errorf("%s: asked for (-want +got):\n%s", when, diff)
	}
	f.asked = nil
}

// tracked gives an agent connection tracking.
func tracked(a *Agent) *fakeTracking {
	kernel := &fakeTracking{statistics: conntrack.Statistics{Entries: 10, Max: 100, Buckets: 25}}
	a.tracking = conntrack.NewTuner(kernel, a.options.Clock, a.log, a.metrics.Tracking)
	return kernel
}

func udpTimeout(seconds int32) func(*v1alpha1.NodeProxyRulesSpec) {
	return func(s *v1alpha1.NodeProxyRulesSpec) {
		s.Settings.Conntrack = &v1alpha1.ConntrackSettings{UDPTimeoutSeconds: &seconds}
	}
}

func mustVerify(t *testing.T, a *Agent) {
	t.Helper()
	if err := a.verify(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestSettingsOfTrackingComeBeforeRules(t *testing.T) {
	a, r, kernel, _ := owningAgent(t)
	fake := tracked(a)
	r.SetRules(r.Node(udpTimeout(30)))
	fake.onTune = func() {
		if kernel.Writes() > 0 {
			t.Error("rules are written before the settings they depend on")
		}
	}
	mustSync(t, a)
	if kernel.Writes() == 0 {
		t.Fatal("no rules are written")
	}
	fake.onTune = nil
	fake.expect(t, "the first sync", 30)
	r.SetService(r.Service("b", 2))
	mustSync(t, a)
	fake.expect(t, "a sync of a Service")
	r.SetRules(r.Node(udpTimeout(40)))
	mustSync(t, a)
	fake.expect(t, "other settings", 40)
	mustVerify(t, a)
	fake.expect(t, "a verification", 40)
	a.options.ProxyHealthAddress, a.options.MetricsAddress = "0", "0"
	ended, end := context.WithCancel(t.Context())
	end()
	var wg sync.WaitGroup
	a.serve(ended, &wg)
	wg.Wait()
	mustSync(t, a)
	fake.expect(t, "once the agent owns the rules again", 40)
}

func TestTrackingIsLeftWhileOthersHaveTheNode(t *testing.T) {
	a, _, _, _ := owningAgent(t)
	fake := tracked(a)
	fake.tuned.Unmet = []string{"x is 1, not 2"}
	lose(a)
	mustSync(t, a)
	mustVerify(t, a)
	fake.expect(t, "beside another proxy")
	if f := factsOf(a); f.Tracking.Report == nil || f.Tracking.Report.Max != 100 {
		t.Errorf("statistics are not reported: %+v", f.Tracking)
	}
	hold(t, a)
	mustSync(t, a)
	if f := factsOf(a); len(f.Tracking.Warnings) != 1 {
		t.Errorf("warnings %q", f.Tracking.Warnings)
	}
	lose(a)
	if f := factsOf(a); len(f.Tracking.Warnings) != 0 {
		t.Errorf("it is warned of what is not ours: %q", f.Tracking.Warnings)
	}
}

func TestRulesFollowLiberalTracking(t *testing.T) {
	full := func(a *Agent) uint64 { return uint64(syncs(t, a)["Full"]) }
	a, _, _, log := owningAgent(t)
	fake := tracked(a)
	mustSync(t, a)
	mustVerify(t, a)
	if n := full(a); n != 1 {
		t.Fatalf("%d full passes", n)
	}
	fake.tuned = conntrack.Tuned{Liberal: true, Changes: []conntrack.Change{{Sysctl: "net.netfilter.nf_conntrack_tcp_be_liberal", From: 0, To: 1}}}
	mustVerify(t, a)
	if n := full(a); n != 2 {
		t.Errorf("%d full passes after a change", n)
	}
	if n := len(log.With("Restored a setting of connection tracking")); n != 1 {
		t.Errorf("log %q", log.With(""))
	}
	fake.tuned.Changes = nil
	mustVerify(t, a)
	if n := full(a); n != 2 {
		t.Errorf("%d full passes without a change", n)
	}
}

func TestTrackingThatComesWithTheRules(t *testing.T) {
	a, r, kernel, log := owningAgent(t)
	fake := tracked(a)
	fake.tuned, fake.failure = conntrack.Tuned{Untracked: true}, fmt.Errorf("no directory: %w", conntrack.ErrUntracked)
	fake.onTune = func() {
		if kernel.Writes() > 0 {
			fake.tuned, fake.failure = conntrack.Tuned{Liberal: true, Changes: []conntrack.Change{{Sysctl: "s", From: 1, To: 2}}}, nil
		}
	}
	if f := factsOf(a); f.Tracking.Report != nil || len(f.Tracking.Warnings) > 0 {
		t.Errorf("before: %+v", f.Tracking)
	}
	// A loop that does not run is overdue once it is triggered.
	clk := clocktesting.NewFakeClock(agenttest.Epoch)
	a.loop = syncer.New(syncer.Options{Clock: clk, Sync: a.syncSome, Verify: a.verify, VerifyInterval: time.Hour})
	mustSync(t, a)
	clk.Step(time.Second)
	if a.loop.Overdue() == 0 {
		t.Error("nothing writes the rules that depend on the settings")
	}
	fake.expect(t, "before and after the rules", 0, 0)
	if n := len(log.With("Changed a setting of connection tracking")); n != 1 || len(log.With("tracks no connections")) > 0 {
		t.Errorf("log %q", log.With(""))
	}
	if f := factsOf(a); f.Tracking.Report == nil || len(f.Tracking.Warnings) > 0 {
		t.Errorf("after: %+v", f.Tracking)
	}
	mustSync(t, a) // the rules follow
	if n := uint64(syncs(t, a)["Full"]); n != 2 {
		t.Errorf("%d full passes, want one more for rules that depend on the settings", n)
	}
	r.SetService(r.Service("b", 2))
	fake.expect(t, "from then on")
}

func TestNodeWithoutTracking(t *testing.T) {
	a, _, _, log := owningAgent(t)
	fake := tracked(a)
	fake.tuned, fake.failure = conntrack.Tuned{Untracked: true}, conntrack.ErrUntracked
	mustSync(t, a)
	mustVerify(t, a)
	mustVerify(t, a)
	c := status.ProgrammedCondition(a.refresh())
	if c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "modprobe nf_conntrack") {
		t.Errorf("condition %+v", c)
	}
	if n := len(log.With("modprobe nf_conntrack")); n != 1 {
		t.Errorf("log %q", log.With(""))
	}
	if n := uint64(syncs(t, a)["Full"]); n != 1 {
		t.Errorf("%d full passes", n)
	}
	fake.tuned, fake.failure = conntrack.Tuned{}, nil
	mustVerify(t, a)
	if c := status.ProgrammedCondition(a.refresh()); strings.Contains(c.Message, "but") {
		t.Errorf("condition %+v", c)
	}
}

func TestUnmetSettingsAreAWarning(t *testing.T) {
	a, _, _, log := owningAgent(t)
	fake := tracked(a)
	fake.tuned.Unmet = []string{"net.netfilter.nf_conntrack_max is 1, not 2 because x"}
	mustSync(t, a)
	mustVerify(t, a)
	status := statusOf(a, nil)
	c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed)
	if c.Status != metav1.ConditionTrue || !strings.HasSuffix(c.Message, ". Restrictions: net.netfilter.nf_conntrack_max is 1, not 2 because x.") {
		t.Errorf("condition %+v", c)
	}
	fake.tuned.Unmet = nil
	mustVerify(t, a)
	if len(log.With("Could not apply all settings of connection tracking")) != 1 || len(log.With("All settings of connection tracking are applied now")) != 1 {
		t.Errorf("log %q", log.With(""))
	}
	if n := uint64(syncs(t, a)["Full"]); n != 1 {
		t.Errorf("%d full passes: rules have nothing to do with it", n)
	}
}

func TestRemovedFlowsAreReported(t *testing.T) {
	a, _, _, _ := owningAgent(t)
	tracked(a)
	a.cleaned(dataplane.IPv4, conntrack.Pass{Removed: map[conntrack.Reason]int{conntrack.EndpointGone: 2}})
	a.cleaned(dataplane.IPv6, conntrack.Pass{Removed: map[conntrack.Reason]int{conntrack.NoEndpoint: 3}})
	if got := factsOf(a).Tracking.Report.FlowsCleaned; got != 5 {
		t.Errorf("flowsCleaned is %d, want 5", got)
	}
}

func TestStatisticsAreReadNowAndThen(t *testing.T) {
	fake := &fakeTracking{statistics: conntrack.Statistics{Entries: 31022, Max: 262144, Buckets: 65536, Counters: conntrack.Counters{InsertFailed: 1, Drop: 2, EarlyDrop: 3}}}
	clk := clocktesting.NewFakeClock(agenttest.Epoch)
	m := metrics.New()
	tr := conntrack.NewTuner(fake, clk, logr.Discard(), m.Tracking)
	tr.Cleaned(conntrack.Pass{Removed: map[conntrack.Reason]int{conntrack.EndpointGone: 17, conntrack.AddressGone: 1}})
	want := v1alpha1.ConntrackReport{Entries: 31022, Max: 262144, UsagePercent: 12, Buckets: 65536, InsertFailed: 1, Drop: 2, EarlyDrop: 3, FlowsCleaned: 18}
	for range 100 { // as in a burst of events
		tr.Refresh()
		if diff := cmp.Diff(want, *tr.Facts(true).Report); diff != "" {
			t.Fatal(diff)
		}
	}
	if fake.readings != 1 {
		t.Errorf("read %d times", fake.readings)
	}
	clk.Step(5 * time.Second)
	fake.statistics.Entries, fake.statistics.Drop, fake.failure = 40000, 0, errors.New("no module")
	tr.Refresh()
	f := tr.Facts(true)
	want.Entries, want.UsagePercent = 40000, 15
	if diff := cmp.Diff(want, *f.Report); diff != "" || len(f.Warnings) != 1 || !strings.Contains(f.Warnings[0], "no module") {
		t.Errorf("warnings %q, report (-want +got):\n%s", f.Warnings, diff)
	}
	clk.Step(-time.Hour) // a clock that is put back
	if tr.Refresh(); fake.readings != 3 {
		t.Errorf("read %d times", fake.readings)
	}
}

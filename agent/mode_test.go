package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/apiclient"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// modal is an agent on a node with both families, that owns the rules.
type modal struct {
	*Agent
	*rig
	t         *testing.T
	four, six *dataplanetest.Fake
	log       *agenttest.Log
}

// newModal returns an agent that may write. The stored status shows that some mode ran.
func newModal(t *testing.T, ran ...v1alpha1.ProxyMode) *modal {
	t.Helper()
	client, err := apiclient.New(&rest.Config{Host: "https://192.0.2.10:6443"})
	if err != nil {
		t.Fatal(err)
	}
	m := &modal{t: t, four: dataplanetest.NewFake(), six: dataplanetest.NewFake(), log: &agenttest.Log{}}
	m.Agent, err = New(Options{
		NodeName: "node-1", Client: client, Probe: (&answers{list: []string{""}}).probe, Clock: clock.RealClock{},
		Dataplanes: map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: m.four, dataplane.IPv6: m.six},
		Log:        funcr.New(m.log.Add, funcr.Options{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range ran {
		reported := (&agenttest.Objects{}).Node()
		reported.Status.Mode = mode
		m.store.SetRules(reported)
	}
	m.rig = fill(t, m.Agent)
	hold(t, m.Agent)
	return m
}

// ask changes the settings.
func (m *modal) ask(mode v1alpha1.ProxyMode, fallback v1alpha1.FallbackMode, edit ...func(*v1alpha1.ProxySettings)) {
	m.SetRules(m.Node(func(s *v1alpha1.NodeProxyRulesSpec) {
		s.Settings.Mode, s.Settings.Fallback = &mode, &fallback
		for _, e := range edit {
			e(&s.Settings)
		}
	}))
}

func (m *modal) lack(err error) {
	m.four.LackMode(v1alpha1.ModeIPVS, err)
	m.six.LackMode(v1alpha1.ModeIPVS, err)
}

func (m *modal) trySync() error { return m.Agent.sync(context.Background()) }

func (m *modal) mustVerify() {
	m.t.Helper()
	if err := m.Agent.verify(context.Background()); err != nil {
		m.t.Fatal(err)
	}
}

// status is what would be written.
func (m *modal) status() v1alpha1.NodeProxyRulesStatus { return statusOf(m.Agent, nil) }

// expect compares the mode of the kernel and the conditions: "True", "False", or
// empty for none.
func (m *modal) expect(mode v1alpha1.ProxyMode, accepted, fallback string) {
	m.t.Helper()
	status := m.status()
	if m.four.Mode() != mode || status.Mode != mode {
		m.t.Errorf("the kernel runs %q, the status shows %q, want %s", m.four.Mode(), status.Mode, mode)
	}
	for kind, want := range map[string]string{v1alpha1.ConditionAccepted: accepted, v1alpha1.ConditionModeFallback: fallback} {
		c := meta.FindStatusCondition(status.Conditions, kind)
		if c == nil {
			c = &metav1.Condition{}
		}
		if string(c.Status) != want {
			m.t.Errorf("condition %s is %q (%s), want %q", kind, c.Status, c.Message, want)
		}
	}
}

func (m *modal) message(kind string) string {
	return meta.FindStatusCondition(m.status().Conditions, kind).Message
}

const (
	rulesMode = v1alpha1.ModeIPTables
	ipvsMode  = v1alpha1.ModeIPVS
	noOther   = v1alpha1.FallbackNone
	toRules   = v1alpha1.FallbackIPTables
)

func TestIPTablesRunsWithoutAsking(t *testing.T) {
	m := newModal(t)
	m.lack(agenttest.Unsupported("no ip_vs"))
	mustSync(t, m.Agent)
	m.mustVerify()
	m.expect(rulesMode, "True", "")
	if n := m.four.Asked(ipvsMode) + m.six.Asked(ipvsMode); n != 0 {
		t.Errorf("the node was asked %d times", n)
	}
	if got := m.proxyMode(); got != "iptables" {
		t.Errorf("/proxyMode %q", got)
	}
}

func TestChangeOfMode(t *testing.T) {
	m := newModal(t)
	m.ask(ipvsMode, noOther)
	mustSync(t, m.Agent)
	m.expect(ipvsMode, "True", "")
	if got := m.proxyMode(); got != "ipvs" {
		t.Errorf("/proxyMode %q", got)
	}
	if lines := m.log.With("has deprecated kube-proxy's ipvs mode"); len(lines) != 1 {
		t.Errorf("what upstream does with it is logged %d times", len(lines))
	}
	asked := m.four.Asked(ipvsMode)
	m.SetService(m.Service("b", 2))
	mustSync(t, m.Agent)
	m.mustVerify()
	if m.four.Asked(ipvsMode) != asked {
		t.Error("the node is asked again though it runs the mode")
	}
	m.ask(rulesMode, noOther)
	mustSync(t, m.Agent)
	m.expect(rulesMode, "True", "")
	if services := m.four.Services(); !slices.Equal(services, []string{"shop/a", "shop/b"}) {
		t.Errorf("the kernel has %v", services)
	}
}

func TestFallback(t *testing.T) {
	m := newModal(t)
	m.lack(agenttest.Unsupported("no ip_vs: modprobe ip_vs"))
	m.ask(ipvsMode, toRules)
	mustSync(t, m.Agent)
	m.expect(rulesMode, "True", "True")
	if text := m.message(v1alpha1.ConditionModeFallback); !strings.Contains(text, "IPv4: no ip_vs: modprobe ip_vs") {
		t.Errorf("message %q", text)
	}
	asked := m.four.Asked(ipvsMode)
	for i := range 3 { // changes cause no probe
		m.SetService(m.Service("b", i+2))
		mustSync(t, m.Agent)
	}
	if m.four.Asked(ipvsMode) != asked {
		t.Error("the node is asked at every change")
	}
	m.mustVerify()
	m.expect(rulesMode, "True", "True")
	if lines := m.log.With("falling back"); len(lines) != 1 {
		t.Errorf("logged: %q", lines)
	}
	m.lack(errors.New("netlink is busy"))
	m.mustVerify()
	m.expect(rulesMode, "True", "True")
	m.lack(nil)
	m.mustVerify()
	m.expect(ipvsMode, "True", "")
	former := []metav1.Condition{{Type: v1alpha1.ConditionModeFallback}}
	if c := meta.FindStatusCondition(statusOf(m.Agent, former).Conditions, v1alpha1.ConditionModeFallback); c.Status != metav1.ConditionFalse {
		t.Errorf("where the node had the condition: %+v", c)
	}
	m.lack(agenttest.Unsupported("as if it had gone")) // it is not probed while it runs
	m.mustVerify()
	m.ask(ipvsMode, toRules, func(s *v1alpha1.ProxySettings) { s.IPVS.Scheduler = new("mh") })
	mustSync(t, m.Agent)
	m.expect(rulesMode, "True", "True")
}

func TestNoFallback(t *testing.T) {
	m := newModal(t)
	mustSync(t, m.Agent)
	m.lack(agenttest.Unsupported("no ip_vs"))
	m.ask(ipvsMode, noOther)
	m.SetService(m.Service("b", 2))
	mustSync(t, m.Agent)
	m.expect(rulesMode, "False", "")
	for _, text := range []string{"this node cannot run IPVS (IPv4: no ip_vs)", "set mode or fallback to IPTables", desired.Meanwhile} {
		if got := m.message(v1alpha1.ConditionAccepted); !strings.Contains(got, text) {
			t.Errorf("%q lacks %q", got, text)
		}
	}
	if c := meta.FindStatusCondition(m.status().Conditions, v1alpha1.ConditionProgrammed); c.Reason != v1alpha1.ReasonFailed {
		t.Errorf("Programmed %+v", c)
	}
	if services := m.four.Services(); !slices.Equal(services, []string{"shop/a"}) {
		t.Errorf("the kernel has %v", services)
	}
	m.mustVerify()
	m.expect(rulesMode, "False", "")
	m.lack(nil)
	m.mustVerify()
	m.expect(ipvsMode, "True", "")
	m.lack(agenttest.Unsupported("no ip_vs"))
	m.ask(ipvsMode, noOther, func(s *v1alpha1.ProxySettings) { s.IPVS.Scheduler = new("mh") })
	mustSync(t, m.Agent)
	m.expect(ipvsMode, "False", "")
	m.ask(rulesMode, noOther)
	mustSync(t, m.Agent)
	m.expect(rulesMode, "True", "")
}

// TestChangeWaitsUntilRulesMayBeRemoved: they come before virtual servers.
func TestChangeWaitsUntilRulesMayBeRemoved(t *testing.T) {
	newer := func(s *v1alpha1.ServiceProxyRulesSpec) { s.FormatVersion = 9 }
	m := newModal(t)
	m.SetService(m.Service("new", 9, newer))
	mustSync(t, m.Agent)
	m.ask(ipvsMode, noOther)
	m.SetService(m.Service("b", 2))
	mustSync(t, m.Agent)
	m.expect(rulesMode, "True", "")
	if services := m.four.Services(); !slices.Equal(services, []string{"shop/a", "shop/b"}) {
		t.Errorf("the kernel has %v", services)
	}
	m.SetService(m.Service("new", 9))
	mustSync(t, m.Agent)
	m.expect(ipvsMode, "True", "")

	for found, want := range map[v1alpha1.ProxyMode]v1alpha1.ProxyMode{rulesMode: rulesMode, ipvsMode: ipvsMode, "": ipvsMode} {
		m := newModal(t, found) // as a restarted agent
		m.SetService(m.Service("new", 9, newer))
		m.ask(ipvsMode, noOther)
		mustSync(t, m.Agent)
		m.expect(want, "True", "")
	}
}

func TestErrorIsNoFallback(t *testing.T) {
	m := newModal(t)
	m.lack(errors.New("netlink is busy"))
	m.ask(ipvsMode, toRules)
	if err := m.trySync(); err == nil {
		t.Error("no error")
	}
	m.lack(nil)
	mustSync(t, m.Agent)
	m.expect(ipvsMode, "True", "")
}

func TestFamilyIsNeededLater(t *testing.T) {
	m := newModal(t)
	m.six.LackMode(ipvsMode, agenttest.Unsupported("no IPv6 in ip_vs"))
	m.ask(ipvsMode, toRules)
	mustSync(t, m.Agent)
	m.expect(ipvsMode, "True", "")
	m.SetService(m.Service("six", 6, func(s *v1alpha1.ServiceProxyRulesSpec) { s.ClusterIPs = []string{"fd00::6"} }))
	mustSync(t, m.Agent)
	m.expect(rulesMode, "True", "True")
	if m.six.Mode() != rulesMode {
		t.Errorf("IPv6 runs %s", m.six.Mode())
	}
}

func TestAuditComparesTheModeThatWouldRun(t *testing.T) {
	audit := func(s *v1alpha1.ProxySettings) { s.Enforcement = new(v1alpha1.Audit) }
	m := newModal(t)
	m.ask(ipvsMode, toRules, audit)
	m.lack(agenttest.Unsupported("no ip_vs"))
	mustSync(t, m.Agent)
	if status := m.status(); status.Mode != rulesMode || !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionModeFallback) {
		t.Errorf("status %+v", status)
	}
	m.lack(nil)
	mustSync(t, m.Agent)
	if status := m.status(); status.Mode != rulesMode {
		t.Errorf("it was probed again before a verification: %s", status.Mode)
	}
	m.mustVerify()
	mustSync(t, m.Agent)
	if status := m.status(); status.Mode != ipvsMode || meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionModeFallback) != nil {
		t.Errorf("status %+v", status)
	}
	m.lack(agenttest.Unsupported("no ip_vs"))
	m.ask(ipvsMode, noOther, audit)
	if err := m.trySync(); !errors.Is(err, dataplane.ErrUnsupported) {
		t.Errorf("error %v", err)
	}
	if !meta.IsStatusConditionFalse(m.status().Conditions, v1alpha1.ConditionAccepted) {
		t.Error("accepted without a fallback")
	}
	m.ask(ipvsMode, toRules) // and Enforce
	mustSync(t, m.Agent)
	m.expect(rulesMode, "True", "True")
}

// TestOtherModesAreProbedOnce: again only when the mode is chosen again, and not by verifications.
func TestOtherModesAreProbedOnce(t *testing.T) {
	m := newModal(t)
	m.ask(rulesMode, noOther)
	mustSync(t, m.Agent)
	for range 3 {
		m.mustVerify()
		mustSync(t, m.Agent)
	}
	if asked := m.four.Asked(v1alpha1.ModeNFTables); asked != 1 {
		t.Errorf("probed %d times since the start", asked)
	}
	m.ask(rulesMode, toRules)
	mustSync(t, m.Agent)
	if asked := m.four.Asked(v1alpha1.ModeNFTables); asked != 2 || len(m.status().Agent.Modes) == 0 {
		t.Errorf("probed %d times after a change of settings: %v", asked, m.status().Agent.Modes)
	}
}

// slowProbe is a data plane whose probe of mode NFTables takes long.
type slowProbe struct {
	*dataplanetest.Fake
	probe func()
}

func (s *slowProbe) Supported(ctx context.Context, r *dataplane.Ruleset) error {
	if r.Mode == v1alpha1.ModeNFTables {
		s.probe()
		return errors.New("no answer")
	}
	return s.Fake.Supported(ctx, r)
}

// TestSlowProbe delays no report of a write, and the wait for the next one begins when it ends.
func TestSlowProbe(t *testing.T) {
	m := newModal(t)
	clk := clocktesting.NewFakeClock(agenttest.Epoch)
	m.options.Clock = clk
	probes := 0
	m.fanout = dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: &slowProbe{m.four, func() {
		if probes++; m.status().LastSync == nil {
			t.Error("the write is not reported before the probe ends")
		}
		clk.SetTime(clk.Now().Add(time.Minute))
	}}})
	m.ask(rulesMode, noOther)
	mustSync(t, m.Agent)
	if m.mustVerify(); probes != 1 {
		t.Errorf("%d probes, and not one", probes)
	}
}

// TestUnknownModeIsProbedAgain: after a pause that doubles, until the answer is known.
func TestUnknownModeIsProbedAgain(t *testing.T) {
	m := newModal(t)
	clk := clocktesting.NewFakeClock(agenttest.Epoch)
	m.options.Clock = clk
	lack := func(err error) {
		m.four.LackMode(v1alpha1.ModeNFTables, err)
		m.six.LackMode(v1alpha1.ModeNFTables, err)
	}
	expect := func(when string, want int, known bool) {
		t.Helper()
		has := slices.ContainsFunc(m.status().Agent.Modes, func(s v1alpha1.ModeSupport) bool { return s.Mode == v1alpha1.ModeNFTables })
		if asked := m.four.Asked(v1alpha1.ModeNFTables); asked != want || has != known {
			t.Errorf("%s: asked %d times, want %d; the answer is known: %v", when, asked, want, has)
		}
	}
	lack(errors.New("no answer"))
	m.ask(rulesMode, noOther)
	mustSync(t, m.Agent)
	m.mustVerify()
	expect("at once", 1, false)
	clk.SetTime(clk.Now().Add(probePause))
	m.mustVerify()
	expect("after the first pause", 2, false)
	clk.SetTime(clk.Now().Add(probePause))
	m.mustVerify()
	expect("within the second pause", 2, false)
	lack(nil)
	clk.SetTime(clk.Now().Add(probePause))
	m.mustVerify()
	expect("after the second pause", 3, true)
	clk.SetTime(clk.Now().Add(longestProbePause))
	m.mustVerify()
	expect("once it is known", 3, true)
}

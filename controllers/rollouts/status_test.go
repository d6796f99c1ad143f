package rollouts

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/test/messages"
)

const edgeSpec = `{nodeSelector: {matchLabels: {pool: edge}}, settings: {mode: IPVS}, rollout: {maxUnavailable: 2, progressDeadlineSeconds: 300}}`

// line prints a condition as "status reason: message".
func line(all []metav1.Condition, kind string) string {
	c := meta.FindStatusCondition(all, kind)
	if c == nil {
		return ""
	}
	return strings.TrimSuffix(fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message), ": ")
}

func TestPolicyStatus(t *testing.T) {
	edge1 := v1alpha1.Cause{Name: "edge", Generation: 1}
	tests := []struct {
		name     string
		change   func(f *aFleet)
		counts   string // nodes, updated, programmed
		ready    string
		stalled  bool
		examples string // name, reason and message of the first one, and how many there are
	}{
		{
			name: "begins", counts: "5 2 0", change: func(*aFleet) {},
			ready:    "False Progressing: 0 of 5 nodes done, 2 being updated (edge-01, edge-02), 3 waiting; at most 2 may be unavailable.",
			examples: "5: edge-01 Updating received its settings at 2026-11-20T12:00:00Z",
		},
		{
			name: "goes on", counts: "5 3 1",
			change: func(f *aFleet) {
				rules := f.giveTo(t, "edge-01", 2*time.Minute, edge1)
				rules.Status.SettingsRevision = rules.Spec.SettingsRevision
				f.giveTo(t, "edge-02", time.Minute, edge1)
			},
			ready:    "False Progressing: 1 of 5 nodes done, 2 being updated (edge-02, edge-03), 2 waiting; at most 2 may be unavailable.",
			examples: "4: edge-02 Updating received its settings at 2026-11-20T11:59:00Z",
		},
		{
			name: "waits for the last one", counts: "1 1 0",
			change: func(f *aFleet) {
				f.rules, f.nodes = f.rules[:1], f.nodes[:1]
				f.giveTo(t, "edge-01", time.Minute, edge1)
			},
			ready:    "False Progressing: 0 of 1 node done, 1 being updated (edge-01).",
			examples: "1: edge-01 Updating received its settings at 2026-11-20T11:59:00Z",
		},
		{
			name: "stops", counts: "5 2 0", stalled: true,
			change: func(f *aFleet) {
				reported(f.giveTo(t, "edge-01", time.Hour, edge1), metav1.ConditionFalse, v1alpha1.ReasonFailed, "the kernel lacks ip_vs")
				f.giveTo(t, "edge-02", time.Minute, edge1)
			},
			ready: "False RolloutHalted: Node edge-01 did not apply its settings within 300 s of 2026-11-20T11:00:00Z (Failed: the kernel lacks ip_vs). " +
				"Fix the node, change spec, or delete its Node; 3 other nodes are waiting.",
			examples: "5: edge-01 DeadlineMissed not applied since 2026-11-20T11:00:00Z: Failed: the kernel lacks ip_vs",
		},
		{
			name: "stops at the last one", counts: "1 1 0", stalled: true,
			change: func(f *aFleet) {
				f.rules, f.nodes = f.rules[:1], f.nodes[:1]
				reported(f.giveTo(t, "edge-01", time.Hour, edge1), metav1.ConditionUnknown, v1alpha1.ReasonAgentNotResponding, "no heartbeat")
			},
			ready: "False RolloutHalted: Node edge-01 did not apply its settings within 300 s of 2026-11-20T11:00:00Z " +
				"(AgentNotResponding: no heartbeat). Fix the node, change spec, or delete its Node; no other node is waiting.",
			examples: "1: edge-01 DeadlineMissed not applied since 2026-11-20T11:00:00Z: AgentNotResponding: no heartbeat",
		},
		{
			name: "is paused", counts: "5 0 0",
			change:   func(f *aFleet) { f.policies[0].Spec.Rollout.Paused = new(true) },
			ready:    "False Paused: The rollout is paused: 0 of 5 nodes done, 5 waiting. Set spec.rollout.paused to false to continue.",
			examples: "5: edge-01 Waiting ",
		},
		{
			name: "waits for nodes that fail for other reasons", counts: "5 2 0",
			change: func(f *aFleet) {
				for i := range 2 {
					rules := f.giveTo(t, f.rules[i].Name, time.Hour, edge1)
					rules.Status.SettingsRevision = rules.Spec.SettingsRevision
					reported(rules, metav1.ConditionFalse, v1alpha1.ReasonFailed, "iptables-restore: exit status 4")
				}
			},
			ready: "False Progressing: 0 of 5 nodes done, 2 not programmed (edge-01, edge-02), 3 waiting; at most 2 may be unavailable; " +
				"edge-01, edge-02 must be programmed first (Failed: iptables-restore: exit status 4).",
			examples: "5: edge-01 Failed Failed: iptables-restore: exit status 4",
		},
		{
			name: "waits for NodeProxy, too", counts: "5 0 0",
			change: func(f *aFleet) {
				f.nodeProxy.Spec.Settings = &v1alpha1.WrittenSettings{Fallback: new(v1alpha1.FallbackIPTables)}
				f.nodeProxy.Spec.Rollout = &v1alpha1.RolloutSettings{Paused: new(true)}
			},
			ready:    "False Progressing: 0 of 5 nodes done, 5 waiting; at most 2 may be unavailable; some wait for NodeProxy, whose rollout is paused.",
			examples: "5: edge-01 Waiting is part of the rollout of NodeProxy",
		},
		{
			name: "is done", counts: "1 1 1",
			change: func(f *aFleet) {
				f.rules, f.nodes = f.rules[:1], f.nodes[:1]
				rules := f.giveTo(t, "edge-01", time.Hour, edge1)
				rules.Status.SettingsRevision = rules.Spec.SettingsRevision
			},
			ready:    "True Applied: The selected node has applied its settings.",
			examples: "0",
		},
		{
			name: "is done, and a node fails later", counts: "1 1 0",
			change: func(f *aFleet) {
				f.rules, f.nodes = f.rules[:1], f.nodes[:1]
				rules := f.giveTo(t, "edge-01", time.Hour, edge1)
				rules.Status.SettingsRevision = rules.Spec.SettingsRevision
				reported(rules, metav1.ConditionFalse, v1alpha1.ReasonFailed, "exit status 4")
			},
			ready:    "False NodesNotProgrammed: 0 of 1 node done, 1 not programmed (edge-01); node edge-01: Failed: exit status 4.",
			examples: "1: edge-01 Failed Failed: exit status 4",
		},
		{
			name: "reaches a node without an agent, and one with another proxy", counts: "2 2 0",
			change: func(f *aFleet) {
				f.rules, f.nodes = f.rules[:2], f.nodes[:2]
				f.rules[0].Status = v1alpha1.NodeProxyRulesStatus{}
				meta.SetStatusCondition(&f.rules[1].Status.Conditions, metav1.Condition{
					Type: v1alpha1.ConditionConflictingProxy, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonConflictingProxy,
				})
				reported(&f.rules[1], metav1.ConditionFalse, v1alpha1.ReasonConflictingProxy, "kube-proxy is active")
				f.giveTo(t, "edge-01", time.Hour)
				f.giveTo(t, "edge-02", time.Hour)
			},
			ready: "False NodesNotProgrammed: 0 of 2 nodes done, 2 not programmed (edge-01, edge-02); " +
				"node edge-01: no agent has ever reported; check that nodeproxy-agent runs there.",
			examples: "2: edge-01 AgentNotResponding no agent has ever reported; check that nodeproxy-agent runs there",
		},
		{
			name: "is not valid", counts: "5 0 0", stalled: true,
			change: func(f *aFleet) { f.policies[0].Spec.Settings.IPVS = &v1alpha1.IPVSSettings{Scheduler: new("fastest")} },
			ready: "False InvalidPolicy: This policy is not used, and the nodes that it selects or has shaped retain their settings. Correct " +
				`spec.settings.ipvs.scheduler: Unsupported value: "fastest": supported values: "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "twos".`,
			examples: "5: edge-01 InvalidPolicy retains its settings because policy edge is invalid",
		},
		{
			name: "has no deadline", counts: "5 0 0", stalled: true,
			change: func(f *aFleet) { f.policies[0].Spec.Rollout.ProgressDeadlineSeconds = new(int32(0)) },
			ready: "False InvalidPolicy: This policy is not used, and the nodes that it selects or has shaped retain their settings. Correct " +
				`spec.rollout.progressDeadlineSeconds: Invalid value: 0: must be 1 or more.`,
			examples: "5: edge-01 InvalidPolicy retains its settings because policy edge is invalid",
		},
		{
			name: "has no valid result", counts: "5 0 0", stalled: true,
			change: func(f *aFleet) {
				f.policies[0].Spec.Settings.Sync = &v1alpha1.SyncSettings{MinIntervalMilliseconds: new(int32(20000))}
				f.policy(t, "careful", `{nodeSelector: {}, settings: {sync: {verifyIntervalSeconds: 15}}}`)
			},
			ready: "False InvalidResult: Together with NodeProxy and policy careful, this policy results in invalid settings, and nodes retain theirs. Correct " +
				"spec.settings.sync.verifyIntervalSeconds: Invalid value: 15: must not be shorter than minIntervalMilliseconds (20000).",
			examples: "5: edge-01 InvalidResult retains its settings because those of policies careful, edge are invalid: " +
				"spec.settings.sync.verifyIntervalSeconds: Invalid value: 15: must not be shorter than minIntervalMilliseconds (20000)",
		},
		{
			name: "selects nothing", counts: "0 0 0", change: func(f *aFleet) { f.nodes, f.rules = nil, nil },
			ready:    "True NothingSelected: No Linux node matches spec.nodeSelector. Compare it with the labels in `kubectl get nodes --show-labels`.",
			examples: "0",
		},
		{
			name: "has no NodeProxy", counts: "5 0 0", change: func(f *aFleet) { f.nodeProxy = nil },
			ready:    "False NoNodeProxy: There is no NodeProxy, so nodes are not changed. Create one named cluster.",
			examples: "5: edge-01 NoNodeProxy there is no NodeProxy",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet(`{}`, t)
			f.pool(t, "edge", 5)
			f.policy(t, "edge", edgeSpec)
			tt.change(f)
			s := f.statusOf("edge")
			if got := fmt.Sprintf("%d %d %d", s.Nodes, s.Updated, s.Programmed); got != tt.counts {
				t.Errorf("counts %s, want %s", got, tt.counts)
			}
			if got := line(s.Conditions, v1alpha1.ConditionReady); got != tt.ready {
				t.Errorf("Ready is\n%s, want\n%s", got, tt.ready)
			}
			if stalled := meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionStalled); stalled != tt.stalled {
				t.Errorf("stalled: %t", stalled)
			}
			examples := fmt.Sprint(len(s.Examples))
			if len(s.Examples) > 0 {
				e := s.Examples[0]
				examples += fmt.Sprintf(": %s %s %s", e.Name, e.Reason, e.Message)
			}
			if examples != tt.examples {
				t.Errorf("examples %s\nwant %s", examples, tt.examples)
			}
			for _, c := range s.Conditions {
				if c.ObservedGeneration != 1 || c.LastTransitionTime.IsZero() {
					t.Errorf("%+v", c)
				}
				messages.Check(t, c.Message)
			}
		})
	}
}

// TestMessagesAreShort: whatever a node reports.
func TestMessagesAreShort(t *testing.T) {
	const report = "Not everything could be written: iptables-restore: exit status 4. The rest is up to date or unchanged, and the agent retries."
	edge1 := v1alpha1.Cause{Name: "edge", Generation: 1}
	for name, tt := range map[string]struct {
		ago     time.Duration
		applied bool
		nodes   int
		edit    func(*v1alpha1.RolloutSettings)
	}{
		"halted":                    {ago: time.Hour, nodes: 5},
		"halted at the last one":    {ago: time.Hour, nodes: 1},
		"others must be programmed": {ago: time.Hour, applied: true, nodes: 5},
		"all have it":               {ago: time.Hour, applied: true, nodes: 2},
		"the only one has it":       {ago: time.Hour, applied: true, nodes: 1},
		"goes on":                   {ago: time.Minute, nodes: 5},
		"paused":                    {ago: time.Minute, nodes: 5, edit: func(s *v1alpha1.RolloutSettings) { s.Paused = new(true) }},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(`{}`, t)
			f.pool(t, "edge", tt.nodes)
			f.policy(t, "edge", edgeSpec)
			if tt.edit != nil {
				tt.edit(f.policies[0].Spec.Rollout)
			}
			for i := range min(tt.nodes, 2) {
				rules := f.giveTo(t, f.rules[i].Name, tt.ago, edge1)
				if tt.applied {
					rules.Status.SettingsRevision = rules.Spec.SettingsRevision
				}
				reported(rules, metav1.ConditionFalse, v1alpha1.ReasonFailed, report)
			}
			for _, c := range f.statusOf("edge").Conditions {
				messages.Check(t, c.Message)
			}
		})
	}
}

// What is stored stays as it is, to the times of the last transitions.
func TestPolicyStatusKeepsWhatHasNotChanged(t *testing.T) {
	f := newFleet(`{}`, t)
	f.pool(t, "edge", 30)
	f.policy(t, "edge", edgeSpec)
	reported(f.giveTo(t, "edge-01", time.Hour, v1alpha1.Cause{Name: "edge", Generation: 1}), metav1.ConditionFalse, v1alpha1.ReasonFailed, strings.Repeat("x", 2000))
	first := f.statusOf("edge")
	if len(first.Examples) != text.MaxExamples || len(first.Examples[0].Message) > text.MaxExampleMessage {
		t.Errorf("%d examples, a message of %d bytes", len(first.Examples), len(first.Examples[0].Message))
	}
	f.policies[0].Status = *first
	p := f.pass()
	later := p.status(p.set.Find("edge"), controllertest.Noon.Add(time.Minute))
	if fmt.Sprint(later) != fmt.Sprint(first) {
		t.Errorf("%+v\nbecomes\n%+v", first, later)
	}
}

func TestOverridden(t *testing.T) {
	f := newFleet(`{}`, t)
	f.policy(t, "edge", `{nodeSelector: {}, settings: {mode: IPTables, ipvs: {scheduler: lc}}}`)
	f.policy(t, "a", `{nodeSelector: {matchLabels: {pool: a}}, priority: 7, settings: {mode: IPVS}}`)
	f.policy(t, "b", `{nodeSelector: {matchLabels: {pool: b}}, settings: {mode: IPVS, ipvs: {scheduler: sh}}}`)
	f.node(t, "a-1", "a")
	f.node(t, "b-1", "b")
	for name, want := range map[string]string{
		"edge": "True Overridden: Policy b (priority 0, as this one: the lower name wins) sets spec.settings.ipvs.scheduler; " +
			"policy a (priority 7) sets spec.settings.mode; policy b (priority 0, as this one: the lower name wins) sets spec.settings.mode.",
		"a": "False NotOverridden", "b": "False NotOverridden",
	} {
		if got := line(f.statusOf(name).Conditions, v1alpha1.ConditionOverridden); got != want {
			t.Errorf("%s: %s, want\n%s", name, got, want)
		}
	}
	const all = `{nodeSelector: {}, priority: %d, settings: {fallback: %s, conntrack: {maxPerCore: %d, min: %[3]d, tcpEstablishedTimeoutSeconds: %[3]d, ` +
		`tcpCloseWaitTimeoutSeconds: %[3]d, udpTimeoutSeconds: %[3]d, udpStreamTimeoutSeconds: %[3]d}, ` +
		`ipvs: {tcpTimeoutSeconds: %[3]d, tcpFinTimeoutSeconds: %[3]d, udpTimeoutSeconds: %[3]d}, masquerade: {bit: %[3]d}, sync: {minIntervalMilliseconds: %[3]d}}}`
	f.policy(t, "loser", fmt.Sprintf(all, 0, "None", 1))
	f.policy(t, "winner", fmt.Sprintf(all, 1, "IPTables", 2))
	if got := line(f.statusOf("loser").Conditions, v1alpha1.ConditionOverridden); strings.Count(got, "olicy winner (") != maxFieldsInText || !strings.HasSuffix(got, "; and 2 more.") {
		t.Error(got)
	}
}

func TestFindingOfNodeProxy(t *testing.T) {
	f := newFleet(`{}`, t)
	f.pool(t, "edge", 2)
	expect := func(when, want string) {
		t.Helper()
		got := f.pass().finding()
		if text := strings.TrimSuffix(got.Reason+": "+got.Message, ": "); text != want {
			t.Errorf("%s: %s, want\n%s", when, text, want)
		}
	}
	expect("nothing to do", "")
	f.policy(t, "edge", edgeSpec)
	expect("a policy's change", "")
	f.policies = nil
	f.nodeProxy.Spec.Settings = &v1alpha1.WrittenSettings{Mode: new(v1alpha1.ModeIPVS)}
	expect("a change", "Progressing: 0 of 2 nodes done, 1 being updated (edge-01), 1 waiting; at most 1 may be unavailable.")
	f.nodeProxy.Spec.Rollout = &v1alpha1.RolloutSettings{Paused: new(true)}
	expect("paused", "Paused: The rollout is paused: 0 of 2 nodes done, 2 waiting. Set spec.rollout.paused to false to continue.")
	f.nodeProxy.Spec.Rollout = nil
	f.giveTo(t, "edge-01", time.Hour, v1alpha1.Cause{Generation: 1})
	expect("stopped", "RolloutHalted: Node edge-01 did not apply its settings within 600 s of 2026-11-20T11:00:00Z (Programmed). "+
		"Fix the node, change spec, or delete its Node; 1 other node is waiting.")
}

func TestWhatCouldNotBeWrittenIsNotGiven(t *testing.T) {
	f := newFleet(`{}`, t)
	f.pool(t, "edge", 2)
	f.policy(t, "edge", edgeSpec)
	p := f.pass()
	given := p.decision.Grants
	if len(given) == 0 {
		t.Fatal("no node is given anything")
	}
	for _, name := range given {
		p.notGiven(p.find(name))
		p.notGiven(p.find(name)) // once
	}
	status := p.status(p.set.Find("edge"), controllertest.Noon)
	if status.Updated != 0 || p.decision.States["edge"].Pending != 2 {
		t.Errorf("%d nodes are updated, %d pending", status.Updated, p.decision.States["edge"].Pending)
	}
	for _, example := range status.Examples {
		if example.Reason != v1alpha1.ReasonWaiting {
			t.Errorf("%+v", example)
		}
	}
}

func TestSameState(t *testing.T) {
	with := func(generation int64, nodes int32, conditions ...metav1.Condition) *v1alpha1.NodeProxyPolicyStatus {
		return &v1alpha1.NodeProxyPolicyStatus{ObservedGeneration: generation, Nodes: nodes, Conditions: conditions}
	}
	ready := func(reason, message string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionReady, Reason: reason, Message: message}
	}
	base := with(2, 5, ready("Progressing", "1 of 5"))
	for name, c := range map[string]struct {
		other *v1alpha1.NodeProxyPolicyStatus
		same  bool
	}{
		"counts and texts": {with(2, 6, ready("Progressing", "2 of 6")), true},
		"a reason":         {with(2, 5, ready("Applied", "1 of 5")), false},
		"a generation":     {with(3, 5, ready("Progressing", "1 of 5")), false},
		"a condition":      {with(2, 5, ready("Progressing", "1 of 5"), metav1.Condition{Type: v1alpha1.ConditionStalled}), false},
		"none yet":         {with(0, 0), false},
	} {
		if got := sameState(base, c.other); got != c.same {
			t.Errorf("%s: the same is %t", name, got)
		}
	}
}

func TestTransitions(t *testing.T) {
	for _, tt := range []struct{ was, is, want string }{
		{"", "Progressing", "Normal"},
		{"Applied", "Applied", ""},
		{"Progressing", "Applied", "Normal"},
		{"NodesNotProgrammed", "Applied", ""},
		{"NothingSelected", "Applied", ""},
		{"Applied", "NodesNotProgrammed", ""},
		{"Progressing", "RolloutHalted", "Warning"},
		{"Applied", "InvalidPolicy", "Warning"},
		{"InvalidPolicy", "Progressing", "Normal"},
		{"Applied", "NoNodeProxy", ""},
	} {
		if what, worth := Transition(tt.was, tt.is); what.Severity != tt.want || worth != (tt.want != "") {
			t.Errorf("from %s to %s: %+v, %t; want %q", tt.was, tt.is, what, worth, tt.want)
		}
	}
}

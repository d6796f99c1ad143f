package rollouts

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/nodesettings"
)

// brief prints a node: what of it is not as in a node that has nothing to do.
func brief(m *fleetNode) string {
	var out []string
	add := func(is bool, text string) {
		if is {
			out = append(out, text)
		}
	}
	add(m.Absent, "absent")
	add(m.Idle, "idle")
	add(m.Retains, "retains:"+m.retains.Reason)
	add(!m.Applied, "not-in-force")
	add(!m.Programmed, "not-programmed")
	add(m.renew, "upkeep")
	if m.Actual != m.Desired {
		var names []string
		for _, name := range m.Causes {
			names = append(names, whose(name))
		}
		out = append(out, "wants:"+strings.Join(names, "+"))
	}
	for _, g := range m.By {
		out = append(out, fmt.Sprintf("by:%s/%d", whose(g.Name), g.Generation))
	}
	return strings.ReplaceAll(strings.Join(out, " "), "policy ", "")
}

func TestFleetNodes(t *testing.T) {
	const edge = `{nodeSelector: {matchLabels: {pool: edge}}, settings: {mode: IPVS, ipvs: {scheduler: lc}}}`
	tests := []struct {
		name   string
		change func(f *aFleet, rules *v1alpha1.NodeProxyRules)
		want   string
	}{
		{name: "nothing to do", change: func(*aFleet, *v1alpha1.NodeProxyRules) {}},
		{
			name: "NodeProxy changes a field that the policy leaves alone", want: "wants:NodeProxy",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) {
				f.nodeProxy.Spec.Settings = &v1alpha1.WrittenSettings{Fallback: new(v1alpha1.FallbackIPTables)}
			},
		},
		{
			name: "NodeProxy changes a field that the policy sets",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) {
				f.nodeProxy.Spec.Settings = &v1alpha1.WrittenSettings{IPVS: &v1alpha1.IPVSSettings{Scheduler: new("sh")}}
			},
		},
		{
			name: "the policy changes", want: "wants:edge",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) { f.policies[0].Spec.Settings.IPVS.Scheduler = new("sh") },
		},
		{
			name: "the policy leaves a field alone from now on", want: "wants:edge",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) { f.policies[0].Spec.Settings.IPVS = nil },
		},
		{
			name: "both change", want: "wants:NodeProxy+edge",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) {
				f.policies[0].Spec.Settings.IPVS.Scheduler = new("sh")
				f.nodeProxy.Spec.Settings = &v1alpha1.WrittenSettings{Fallback: new(v1alpha1.FallbackIPTables)}
			},
		},
		{
			name: "the policy is deleted", want: "wants:NodeProxy",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) { f.policies = nil },
		},
		{
			name: "the policy selects others", want: "wants:edge",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) { f.nodes[0].Labels = nil },
		},
		{
			name: "another policy takes over from one that selects others", want: "wants:edge+gateways",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) {
				f.nodes[0].Labels["pool"] = "gateways"
				f.policy(t, "gateways", `{nodeSelector: {matchLabels: {pool: gateways}}, settings: {mode: IPVS, ipvs: {scheduler: sh}}}`)
			},
		},
		{
			name: "another policy sets the same instead: only the names differ", want: "upkeep",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) {
				f.policies[0].Name = "a-pool"
			},
		},
		{
			name: "another policy sets one of the fields to the same", want: "upkeep",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) {
				f.policy(t, "z", `{nodeSelector: {}, priority: 2, settings: {mode: IPVS}}`)
			},
		},
		{
			name: "a stronger policy", want: "wants:z",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) {
				f.policy(t, "z", `{nodeSelector: {}, priority: 2, settings: {mode: IPTables}}`)
			},
		},
		{
			name: "the policy is not valid any more", want: "retains:InvalidPolicy",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) {
				f.policies[0].Spec.Settings.IPVS.Scheduler = new("fastest")
			},
		},
		{
			name: "nor does its selector make sense: it has shaped the node", want: "retains:InvalidPolicy",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) {
				f.policies[0].Spec.NodeSelector.MatchLabels = map[string]string{"a b": "c"}
			},
		},
		{
			name: "a policy that selects the node is not valid", want: "retains:InvalidPolicy",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) {
				f.policy(t, "z", `{nodeSelector: {}, settings: {mode: IPTables}, rollout: {maxUnavailable: 0}}`)
				f.policies[0].Spec.Settings.IPVS.Scheduler = new("sh") // not even this
			},
		},
		{
			name: "a policy that selects others is not valid", want: "",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) {
				f.policy(t, "z", `{nodeSelector: {matchLabels: {pool: core}}, settings: {masquerade: {bit: 40}}}`)
			},
		},
		{
			name: "together they are not valid", want: "retains:InvalidResult",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) {
				f.policy(t, "z", `{nodeSelector: {}, settings: {sync: {minIntervalMilliseconds: 90000}}}`)
			},
		},
		{
			name: "those of NodeProxy are not valid", want: "retains:InvalidSettings",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) {
				f.nodeProxy.Spec.Settings = &v1alpha1.WrittenSettings{Masquerade: &v1alpha1.MasqueradeSettings{Bit: new(int32(40))}}
			},
		},
		{
			name: "there is no NodeProxy", want: "retains:NoNodeProxy",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) { f.nodeProxy = nil; f.policies = nil },
		},
		{
			name: "it has no rules", want: "idle retains:Waiting not-in-force not-programmed",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) { f.rules = nil },
		},
		{
			name: "its Node is absent, whatever changes", want: "absent",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) { f.nodes, f.policies = nil, nil },
		},
		{
			name: "its Node runs something else", want: "absent",
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) { f.nodes[0].Labels[corev1.LabelOSStable] = "windows" },
		},
		{
			name: "no agent has reported", want: "idle not-in-force not-programmed",
			change: func(_ *aFleet, rules *v1alpha1.NodeProxyRules) { rules.Status = v1alpha1.NodeProxyRulesStatus{} },
		},
		{
			name: "another proxy serves it", want: "idle not-programmed",
			change: func(_ *aFleet, rules *v1alpha1.NodeProxyRules) {
				reported(rules, metav1.ConditionFalse, v1alpha1.ReasonConflictingProxy, "kube-proxy is active")
				meta.SetStatusCondition(&rules.Status.Conditions, metav1.Condition{
					Type: v1alpha1.ConditionConflictingProxy, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonConflictingProxy,
				})
			},
		},
		{
			name: "its agent is silent", want: "not-programmed",
			change: func(_ *aFleet, rules *v1alpha1.NodeProxyRules) {
				reported(rules, metav1.ConditionUnknown, v1alpha1.ReasonAgentNotResponding, "no heartbeat")
			},
		},
		{
			name: "some Services are rejected",
			change: func(_ *aFleet, rules *v1alpha1.NodeProxyRules) {
				reported(rules, metav1.ConditionTrue, v1alpha1.ReasonSomeServicesRejected, "all but one")
				rules.Status.Rejected = &v1alpha1.RejectedServices{Count: 1, Examples: []string{"shop/cart: IPv4: line 3 failed"}}
			},
		},
		{
			name: "something is held",
			change: func(_ *aFleet, rules *v1alpha1.NodeProxyRules) {
				reported(rules, metav1.ConditionTrue, v1alpha1.ReasonRetained, "the list is unconfirmed")
			},
		},
		{
			name: "compared, and it differs",
			change: func(_ *aFleet, rules *v1alpha1.NodeProxyRules) {
				reported(rules, metav1.ConditionFalse, v1alpha1.ReasonAuditDiffers, "17 differences")
			},
		},
		{
			name: "not compared yet", want: "not-in-force not-programmed",
			change: func(_ *aFleet, rules *v1alpha1.NodeProxyRules) {
				rules.Status.SettingsRevision = "before"
				reported(rules, metav1.ConditionFalse, v1alpha1.ReasonPending, "waits to be compared")
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet(`{}`, t)
			f.policy(t, "edge", edge)
			tt.change(f, f.node(t, "edge-1", "edge"))
			p := f.pass()
			if got := brief(&p.nodes[0]); len(p.nodes) != 1 || got != tt.want {
				t.Errorf("%d nodes, the first: %q, want %q", len(p.nodes), got, tt.want)
			}
		})
	}
}

// regrant changes the grant of a node.
func regrant(t testing.TB, rules *v1alpha1.NodeProxyRules, change func(*v1alpha1.SettingsGrant)) {
	t.Helper()
	g := nodesettings.GrantOf(rules)
	change(g)
	if err := nodesettings.SetGrant(rules, *g); err != nil {
		t.Fatal(err)
	}
}

// What is edited is corrected, without a budget, if the node was given what it is to
// have.
func TestHandEdits(t *testing.T) {
	edited := func(rules *v1alpha1.NodeProxyRules) {
		rules.Spec.Settings.Mode = new(v1alpha1.ModeIPTables)
		rules.Generation++
	}
	tests := []struct {
		name   string
		change func(f *aFleet, rules *v1alpha1.NodeProxyRules)
		want   string
		given  time.Time
	}{
		{
			name: "the settings", want: "upkeep", given: controllertest.Noon,
			change: func(_ *aFleet, rules *v1alpha1.NodeProxyRules) { edited(rules) },
		},
		{
			name: "to what is not valid", want: "upkeep", given: controllertest.Noon,
			change: func(_ *aFleet, rules *v1alpha1.NodeProxyRules) {
				rules.Spec.Settings.Mode = new(v1alpha1.ProxyMode("Magic"))
				rules.Generation++
			},
		},
		{
			name: "the revision", want: "not-in-force upkeep by:edge/1", given: controllertest.Noon,
			change: func(_ *aFleet, rules *v1alpha1.NodeProxyRules) {
				regrant(t, rules, func(g *v1alpha1.SettingsGrant) { g.By = []v1alpha1.Cause{{Name: "edge", Generation: 1}} })
				rules.Spec.SettingsRevision, rules.Status.SettingsRevision = "mine", "mine"
			},
		},
		{
			name: "the policies", want: "upkeep", given: controllertest.Noon.Add(-time.Hour),
			change: func(_ *aFleet, rules *v1alpha1.NodeProxyRules) { rules.Spec.Policies = []string{"mine"} },
		},
		{
			name: "the settings, while another change waits: that comes in its turn", want: "wants:edge", given: controllertest.Noon.Add(-time.Hour),
			change: func(f *aFleet, rules *v1alpha1.NodeProxyRules) {
				f.policies[0].Spec.Settings.IPVS = &v1alpha1.IPVSSettings{Scheduler: new("sh")}
				edited(rules)
			},
		},
		{
			name: "the settings to what it waits for", want: "not-in-force upkeep", given: controllertest.Noon,
			change: func(f *aFleet, rules *v1alpha1.NodeProxyRules) {
				f.policies[0].Spec.Settings.Mode = new(v1alpha1.ModeIPTables)
				edited(rules)
			},
		},
		{
			name: "and the revision with them", want: "not-in-force upkeep", given: controllertest.Noon,
			change: func(f *aFleet, rules *v1alpha1.NodeProxyRules) {
				f.policies[0].Spec.Settings.Mode = new(v1alpha1.ModeIPTables)
				edited(rules)
				rules.Spec.SettingsRevision = f.revisions.of(rules)
			},
		},
		{
			name: "the annotation", want: "upkeep", given: controllertest.Noon,
			change: func(_ *aFleet, rules *v1alpha1.NodeProxyRules) {
				rules.Annotations[v1alpha1.AnnotationRollout] = "mine"
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet(`{}`, t)
			f.policy(t, "edge", `{nodeSelector: {}, settings: {mode: IPVS}}`)
			tt.change(f, f.node(t, "edge-1", "edge"))
			m := &f.pass().nodes[0]
			if got := brief(m); got != tt.want || !m.Given.Equal(tt.given) {
				t.Errorf("%q, given at %s; want %q, %s", got, m.Given, tt.want, tt.given)
			}
			if !m.renew {
				return
			}
			next, err := nodesettings.WithSettings(m.rules, m.resolution, nodesettings.NewGrant(m.resolution, m.By, m.Given))
			if err != nil {
				t.Fatal(err)
			}
			if want := m.resolution.Settings; next.Spec.SettingsRevision != want.Revision || *next.Spec.Settings.Mode != *want.Complete.Mode ||
				!slices.Equal(next.Spec.Policies, m.resolution.Policies) || nodesettings.GrantOf(next).Revision != want.Revision {
				t.Errorf("written are %s, %s, %q, %+v", next.Spec.SettingsRevision, *next.Spec.Settings.Mode, next.Spec.Policies, nodesettings.GrantOf(next))
			}
		})
	}
}

// An object of an older release has no grant, and nothing is written to it for that.
func TestRulesWithoutGrant(t *testing.T) {
	f := newFleet(`{}`, t)
	f.node(t, "n1", "core").Annotations = nil
	if got := brief(&f.pass().nodes[0]); got != "" {
		t.Error(got)
	}
	f.nodeProxy.Spec.Settings = &v1alpha1.WrittenSettings{Mode: new(v1alpha1.ModeIPVS)}
	if got := brief(&f.pass().nodes[0]); got != "wants:NodeProxy" {
		t.Error(got)
	}
}

// A node that has not applied its settings yet gets another deadline when their causes change.
func TestCausesLast(t *testing.T) {
	for _, tt := range []struct {
		name   string
		by     []v1alpha1.Cause
		change func(f *aFleet, rules *v1alpha1.NodeProxyRules)
		want   string
		given  time.Time
	}{
		{
			name: "the same", by: []v1alpha1.Cause{{Name: "edge", Generation: 1}}, change: func(*aFleet, *v1alpha1.NodeProxyRules) {},
			want: "not-in-force by:edge/1", given: controllertest.Noon.Add(-time.Hour),
		},
		{
			name: "a new generation", by: []v1alpha1.Cause{{Name: "edge", Generation: 1}},
			change: func(f *aFleet, _ *v1alpha1.NodeProxyRules) { f.policies[0].Generation = 2 },
			want:   "not-in-force upkeep by:edge/2", given: controllertest.Noon,
		},
		{
			name: "a policy that is gone", by: []v1alpha1.Cause{{Generation: 1}, {Name: "gone", Generation: 4}},
			change: func(*aFleet, *v1alpha1.NodeProxyRules) {},
			want:   "not-in-force upkeep by:NodeProxy/1", given: controllertest.Noon,
		},
		{
			name: "nothing is at risk any more", by: []v1alpha1.Cause{{Name: "edge", Generation: 1}},
			change: func(_ *aFleet, rules *v1alpha1.NodeProxyRules) { rules.Status.Agent = nil },
			want:   "idle not-in-force upkeep", given: controllertest.Noon.Add(-time.Hour),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet(`{}`, t)
			f.policy(t, "edge", `{nodeSelector: {}, settings: {mode: IPVS}}`)
			rules := f.node(t, "edge-1", "edge")
			regrant(t, rules, func(g *v1alpha1.SettingsGrant) { g.By = tt.by })
			rules.Status.SettingsRevision = "before"
			tt.change(f, rules)
			m := &f.pass().nodes[0]
			if got := brief(m); got != tt.want || !m.Given.Equal(tt.given) {
				t.Errorf("%q, given at %s; want %q, %s", got, m.Given, tt.want, tt.given)
			}
		})
	}
}

// While the cache is behind, what was written counts, so that no budget is given away
// twice.
func TestWritesCountAtOnce(t *testing.T) {
	rules := func(uid types.UID, version, revision string) v1alpha1.NodeProxyRules {
		r := v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: uid, ResourceVersion: version}}
		r.Spec.SettingsRevision = revision
		return r
	}
	for _, tt := range []struct {
		name   string
		cached v1alpha1.NodeProxyRules
		want   string
		waits  bool
	}{
		{"the cache is behind", rules("a", "99", "before"), "written", true},
		{"the cache has it", rules("a", "100", "written"), "written", false},
		{"another write came since", rules("a", "101", "later"), "later", false},
		{"it was made anew", rules("b", "98", "new"), "new", false},
	} {
		written := rules("a", "100", "written")
		r := &Reconciler{written: map[string]*v1alpha1.NodeProxyRules{"n1": &written, "gone": {}}}
		cached := []v1alpha1.NodeProxyRules{tt.cached}
		r.catchUp(cached)
		if got := cached[0].Spec.SettingsRevision; got != tt.want || (len(r.written) == 1) != tt.waits {
			t.Errorf("%s: %s, and %d are waited for", tt.name, got, len(r.written))
		}
	}
}

// BenchmarkPass is one look at a large cluster in which nothing changes.
func BenchmarkPass(b *testing.B) {
	f := newFleet(`{}`, b)
	for i := range 100 {
		f.policy(b, fmt.Sprintf("policy-%d", i), fmt.Sprintf(`{nodeSelector: {matchLabels: {pool: p%d}}, settings: {conntrack: {min: %d}}}`, i, i+1))
	}
	for i := range 1000 {
		f.node(b, fmt.Sprintf("node-%d", i), fmt.Sprintf("p%d", i%100))
	}
	b.ReportAllocs()
	for b.Loop() {
		p := f.pass()
		for _, policy := range p.set.All {
			p.status(policy, controllertest.Noon)
		}
	}
}

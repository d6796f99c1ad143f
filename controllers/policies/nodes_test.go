package policies

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// settings reads settings as users write them.
func settings(t testing.TB, text string) *v1alpha1.ProxySettings {
	t.Helper()
	s := &v1alpha1.ProxySettings{}
	if err := yaml.UnmarshalStrict([]byte(text), s); err != nil {
		t.Fatal(err)
	}
	return s
}

func policy(t testing.TB, name string, priority int32, selector, text string) NodePolicy {
	t.Helper()
	s, err := labels.Parse(selector)
	if err != nil {
		t.Fatal(err)
	}
	return NodePolicy{Name: name, Priority: priority, Selector: s, Settings: settings(t, text)}
}

// TestFieldsCanBeAbsent: merging takes it for granted that each field is a pointer or a
// slice with a name in JSON, so that one that is not set can be determined.
func TestFieldsCanBeAbsent(t *testing.T) {
	var look func(path string, of reflect.Type)
	look = func(path string, of reflect.Type) {
		for f := range of.Fields() {
			at := pathOf(path, f)
			if strings.HasSuffix(at, ".") || at == "" {
				t.Errorf("%s of %s has no name in JSON", f.Name, of)
			}
			if k := f.Type.Kind(); k != reflect.Pointer && k != reflect.Slice {
				t.Errorf("%s is a %s: it cannot be absent", at, f.Type)
			} else if nested(f.Type) {
				look(at, f.Type.Elem())
			}
		}
	}
	look("", reflect.TypeFor[v1alpha1.ProxySettings]())
}

// TestNoSelector: a policy whose selector makes no sense selects no node.
func TestNoSelector(t *testing.T) {
	n := NewNodes(nil, []NodePolicy{policy(t, "good", 1, "", `{mode: IPVS}`), {Name: "odd", Priority: 2, Settings: settings(t, `{mode: IPTables}`)}})
	if r := n.ResolveNew(map[string]string{"a": "b"}); !slices.Equal(r.Matching, []string{"good"}) || r.Invalid != nil {
		t.Errorf("%q match, and it is invalid: %v", r.Matching, r.Invalid)
	}
}

func TestResolve(t *testing.T) {
	base := `{mode: IPTables, ipvs: {scheduler: wrr, strictARP: Enabled}, nodePorts: {addressMode: CIDRs, cidrs: [192.0.2.0/24], localhost: Disabled}}`
	tests := []struct {
		name     string
		base     string
		policies []NodePolicy
		labels   labels.Set

		settings           string // as if users had written all of it
		matching, shaping  string
		owners, overridden string
	}{
		{name: "nothing at all", settings: `{}`},
		{name: "NodeProxy alone", base: base, settings: base, owners: "ipvs.scheduler= ipvs.strictARP= mode= nodePorts="},
		{
			name: "one field of a policy", base: base, labels: labels.Set{"pool": "edge"},
			policies: []NodePolicy{policy(t, "edge", 1, "pool=edge", `{mode: IPVS, ipvs: {scheduler: lc}}`)},
			settings: `{mode: IPVS, ipvs: {scheduler: lc, strictARP: Enabled}, nodePorts: {addressMode: CIDRs, cidrs: [192.0.2.0/24], localhost: Disabled}}`,
			matching: "edge", shaping: "edge", owners: "ipvs.scheduler=edge ipvs.strictARP= mode=edge nodePorts=",
		},
		{
			name: "a policy for others", base: `{mode: IPVS}`, labels: labels.Set{"pool": "core"},
			policies: []NodePolicy{policy(t, "edge", 1, "pool=edge", `{mode: IPTables}`)},
			settings: `{mode: IPVS}`, owners: "mode=",
		},
		{
			name: "a union as a whole", base: base,
			policies: []NodePolicy{policy(t, "ports", 1, "", `{nodePorts: {localhost: Enabled}, ipvs: {scheduler: wrr}}`)},
			settings: `{mode: IPTables, ipvs: {scheduler: wrr, strictARP: Enabled}, nodePorts: {localhost: Enabled}}`,
			matching: "ports", shaping: "ports", owners: "ipvs.scheduler=ports ipvs.strictARP= mode= nodePorts=ports",
		},
		{
			name: "the highest priority, whatever the names",
			policies: []NodePolicy{
				policy(t, "a", -5, "", `{mode: IPTables, fallback: None}`),
				policy(t, "b", 7, "", `{mode: IPVS}`),
				policy(t, "c", 0, "", `{mode: IPTables, ipvs: {scheduler: sh}, fallback: IPTables}`),
			},
			settings: `{mode: IPVS, ipvs: {scheduler: sh}, fallback: IPTables}`,
			matching: "b c a", shaping: "b c", owners: "fallback=c ipvs.scheduler=c mode=b",
			overridden: "a.fallback<c a.mode<b c.mode<b",
		},
		{
			name: "equal priorities: the lower name",
			policies: []NodePolicy{
				policy(t, "b", 3, "", `{ipvs: {scheduler: lc}, enforcement: Audit}`),
				policy(t, "a", 3, "", `{ipvs: {scheduler: sh}}`),
			},
			settings: `{ipvs: {scheduler: sh}, enforcement: Audit}`,
			matching: "a b", shaping: "a b", owners: "enforcement=b ipvs.scheduler=a", overridden: "b.ipvs.scheduler<a",
		},
		{
			name: "the same value overrides no policy",
			policies: []NodePolicy{
				policy(t, "a", 2, "", `{mode: IPVS}`), policy(t, "b", 1, "", `{mode: IPVS}`),
			},
			settings: `{mode: IPVS}`, matching: "a b", shaping: "a", owners: "mode=a",
		},
		{
			name: "an empty list is a value", base: `{ipvs: {excludeCIDRs: [192.0.2.0/24]}}`,
			policies: []NodePolicy{policy(t, "none", 1, "", `{ipvs: {excludeCIDRs: []}}`)},
			settings: `{ipvs: {excludeCIDRs: []}}`, matching: "none", shaping: "none", owners: "ipvs.excludeCIDRs=none",
		},
		{
			name:     "a policy that sets nothing",
			policies: []NodePolicy{policy(t, "empty", 1, "", `{ipvs: {}}`), {Name: "nil", Selector: labels.Everything()}},
			settings: `{}`, matching: "empty nil",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := NewNodes(settings(t, tt.base), tt.policies).Resolve(tt.labels)
			if r.Invalid != nil || r.Settings == nil {
				t.Fatal(r.Invalid)
			}
			if diff := cmp.Diff(v1alpha1.CompleteSettings(settings(t, tt.settings)), &r.Settings.Complete); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
			for _, c := range [][2]string{
				{tt.matching, strings.Join(r.Matching, " ")}, {tt.shaping, strings.Join(r.Policies, " ")},
				{tt.owners, pairs(r.Owners, "", "=")}, {tt.overridden, overridden(r)},
			} {
				if c[0] != c[1] {
					t.Errorf("got %q, want %q", c[1], c[0])
				}
			}
		})
	}
}

// TestManyPolicies are distinguished, each by what selects a node alone.
func TestManyPolicies(t *testing.T) {
	var all []NodePolicy
	for i := range int32(20) {
		all = append(all, policy(t, fmt.Sprintf("p%02d", i), 0, fmt.Sprintf("n%d", i), fmt.Sprintf(`{masquerade: {bit: %d}}`, i)))
	}
	n := NewNodes(nil, all)
	for i := range int32(20) {
		r := n.Resolve(labels.Set{fmt.Sprintf("n%d", i): ""})
		if got := *r.Settings.Complete.Masquerade.Bit; got != i || !slices.Equal(r.Policies, []string{all[i].Name}) {
			t.Errorf("by policy %s the bit is %d, and the policies are %q", all[i].Name, got, r.Policies)
		}
	}
}

// TestOrderOfPoliciesIsTheSame in whatever order they are given, as by a list of the
// API.
func TestOrderOfPoliciesIsTheSame(t *testing.T) {
	all := []NodePolicy{
		policy(t, "a", 1, "", `{mode: IPVS, ipvs: {scheduler: lc}}`), policy(t, "b", 1, "", `{ipvs: {scheduler: sh, strictARP: Enabled}}`),
		policy(t, "c", 2, "", `{fallback: IPTables}`), policy(t, "d", -1, "", `{mode: IPTables, masquerade: {bit: 9}}`),
	}
	want := NewNodes(nil, all).Resolve(nil)
	for range 50 {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if diff := cmp.Diff(want, NewNodes(nil, all).Resolve(nil)); diff != "" {
			t.Fatal(diff)
		}
	}
}

func TestInvalidResult(t *testing.T) {
	tests := []struct {
		name, base string
		policies   []NodePolicy
		blamed     string
		reports    string
		others     string // policies that shape a new Node all the same
	}{
		{
			name: "by one policy", base: `{sync: {verifyIntervalSeconds: 60}}`,
			policies: []NodePolicy{policy(t, "slow", 1, "", `{sync: {minIntervalMilliseconds: 90000}}`), policy(t, "other", 2, "", `{mode: IPVS}`)},
			blamed:   "slow", reports: "spec.settings.sync.verifyIntervalSeconds", others: "other",
		},
		{
			name:     "by two together",
			policies: []NodePolicy{policy(t, "slow", 1, "", `{sync: {minIntervalMilliseconds: 30000}}`), policy(t, "quick", 2, "", `{sync: {verifyIntervalSeconds: 10}}`)},
			blamed:   "quick slow", reports: "spec.settings.sync.verifyIntervalSeconds",
		},
		{
			name:     "by each",
			policies: []NodePolicy{policy(t, "a", 1, "", `{masquerade: {bit: 40}}`), policy(t, "b", 2, "", `{mode: Magic}`)},
			blamed:   "b a", reports: "spec.settings.masquerade.bit",
		},
		{
			// One is enough without the other two, which are not valid by themselves.
			name: "by one, then by another", base: `{sync: {verifyIntervalSeconds: 10}}`,
			policies: []NodePolicy{
				policy(t, "a", 3, "", `{sync: {verifyIntervalSeconds: 30}}`), policy(t, "b", 2, "", `{sync: {minIntervalMilliseconds: 60000}}`),
				policy(t, "c", 1, "", `{sync: {minIntervalMilliseconds: 20000}}`), policy(t, "d", 0, "", `{mode: IPVS}`),
			},
			blamed: "b", reports: "spec.settings.sync.verifyIntervalSeconds", others: "a c d",
		},
		{
			name: "by NodeProxy", base: `{mode: Magic}`,
			policies: []NodePolicy{policy(t, "a", 1, "", `{masquerade: {bit: 4}}`)},
			blamed:   "", reports: "spec.settings.mode",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := NewNodes(settings(t, tt.base), tt.policies).Resolve(nil)
			if r.Settings != nil || r.Invalid == nil || !strings.Contains(r.Invalid.Error(), tt.reports) {
				t.Errorf("settings %+v, %v; want an error that names %s", r.Settings, r.Invalid, tt.reports)
			}
			if len(r.Blamed) == 0 || strings.Join(r.Blamed, " ") != tt.blamed {
				t.Errorf("blamed %q, want %q", r.Blamed, tt.blamed)
			}
			switch fresh := NewNodes(settings(t, tt.base), tt.policies).ResolveNew(nil); {
			case tt.blamed == "":
				if fresh.Settings != nil {
					t.Errorf("a new Node gets %+v of a NodeProxy that is not valid", fresh.Settings)
				}
			case fresh.Settings == nil:
				t.Error("a new Node gets nothing:", fresh.Invalid)
			case strings.Join(fresh.Policies, " ") != tt.others:
				t.Errorf("a new Node gets what %q make of its settings, want %q", fresh.Policies, tt.others)
			}
		})
	}
	fixed := NewNodes(settings(t, `{mode: Magic}`), []NodePolicy{policy(t, "good", 1, "", `{mode: IPVS}`)}).Resolve(nil)
	if fixed.Invalid != nil {
		t.Error("a policy that overrides what is wrong:", fixed.Invalid)
	}
}

func TestInputsStayAsTheyAre(t *testing.T) {
	const text = `{mode: IPVS, ipvs: {scheduler: lc, excludeCIDRs: [192.0.2.7/24]}, detectLocal: {mode: ClusterCIDR, clusterCIDRs: [10.1.2.3/16]}}`
	p, base := policy(t, "a", 1, "", text), settings(t, `{ipvs: {strictARP: Enabled}}`)
	NewNodes(base, []NodePolicy{p}).Resolve(nil)
	if diff := cmp.Diff(settings(t, text), p.Settings); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(settings(t, `{ipvs: {strictARP: Enabled}}`), base); diff != "" {
		t.Error(diff)
	}
}

func TestCauses(t *testing.T) {
	complete := func(text string) *v1alpha1.ProxySettings { return v1alpha1.CompleteSettings(settings(t, text)) }
	owners := map[string]string{"mode": "edge", "ipvs.excludeCIDRs": "edge", "masquerade.bit": "marks", "fallback": Base}
	for _, tt := range []struct{ before, after, want string }{
		{`{mode: IPVS}`, `{mode: IPVS, ipvs: {excludeCIDRs: []}}`, ""},
		{`{}`, `{mode: IPVS}`, "edge"},
		{`{ipvs: {excludeCIDRs: [192.0.2.0/24]}}`, `{}`, "edge"},
		{`{}`, `{ipvs: {excludeCIDRs: [192.0.2.0/24]}}`, "edge"},
		{`{}`, `{fallback: IPTables}`, "NodeProxy"},
		{`{nodePorts: {addressMode: Primary}}`, `{}`, "NodeProxy"}, // no policy sets it any more
		{`{}`, `{mode: IPVS, fallback: IPTables, masquerade: {bit: 3}}`, "NodeProxy edge marks"},
	} {
		names := Causes(complete(tt.before), complete(tt.after), owners)
		got := strings.Join(names, " ")
		if len(names) > 0 && names[0] == Base {
			got = strings.TrimSpace("NodeProxy " + strings.TrimSpace(got))
		}
		if got != tt.want {
			t.Errorf("from %s to %s: %q, want %q", tt.before, tt.after, got, tt.want)
		}
	}
}

func joined(words []string) string {
	slices.Sort(words)
	return strings.Join(words, " ")
}

func pairs(m map[string]string, before, between string) string {
	var out []string
	for k, v := range m {
		out = append(out, before+k+between+v)
	}
	return joined(out)
}

func overridden(r *NodeResolution) string {
	var out []string
	for name, fields := range r.Overridden {
		out = append(out, strings.Fields(pairs(fields, name+".", "<"))...)
	}
	return joined(out)
}

// BenchmarkResolve resolves a cluster afresh: what a change of a policy costs at most.
func BenchmarkResolve(b *testing.B) {
	const pools, nodes = 100, 1000
	var all []NodePolicy
	for i := range pools {
		all = append(all, policy(b, fmt.Sprintf("policy-%d", i), int32(i%7), fmt.Sprintf("pool=p%d", i), fmt.Sprintf(`{mode: IPVS, conntrack: {min: %d}}`, i))) //nolint:gosec // small
	}
	var nodeLabels []labels.Set
	for i := range nodes {
		nodeLabels = append(nodeLabels, labels.Set{"pool": fmt.Sprintf("p%d", i%pools), "kubernetes.io/hostname": fmt.Sprint(i)})
	}
	b.ReportAllocs()
	for b.Loop() {
		n := NewNodes(&v1alpha1.ProxySettings{}, all)
		for _, l := range nodeLabels {
			n.Resolve(l)
		}
	}
}

package policies

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// overrides reads overrides as users write them.
func overrides(t testing.TB, text string) *v1alpha1.ServiceOverrides {
	t.Helper()
	o := &v1alpha1.ServiceOverrides{}
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatal(err)
	}
	return o
}

func servicePolicy(t testing.TB, name string, priority int32, namespaces, services, text string) ServicePolicy {
	t.Helper()
	n, err := labels.Parse(namespaces)
	if err != nil {
		t.Fatal(err)
	}
	s, err := labels.Parse(services)
	if err != nil {
		t.Fatal(err)
	}
	return ServicePolicy{Name: name, Priority: priority, Namespaces: n, Services: s, Overrides: overrides(t, text)}
}

// TestOverridesCanBeAbsent: merging takes it for granted that each field is a pointer or
// a slice with a name in JSON.
func TestOverridesCanBeAbsent(t *testing.T) {
	for f := range reflect.TypeFor[v1alpha1.ServiceOverrides]().Fields() {
		at := pathOf("", f)
		if k := f.Type.Kind(); at == "" || k != reflect.Pointer && k != reflect.Slice {
			t.Errorf("%s (%q) is a %s: it cannot be absent", f.Name, at, f.Type)
		}
		if nested(f.Type) {
			t.Errorf("%s would be merged field by field", at)
		}
	}
}

func TestResolveServices(t *testing.T) {
	tests := []struct {
		name       string
		policies   []ServicePolicy
		ns, labels labels.Set

		overrides, matching, shaping, owners, overridden string
	}{
		{name: "no policies", overrides: `{}`},
		{
			name: "one policy", ns: labels.Set{"team": "shop"}, labels: labels.Set{"app": "cart"},
			policies:  []ServicePolicy{servicePolicy(t, "p", 0, "team=shop", "app=cart", `{nodePorts: Disabled}`)},
			overrides: `{nodePorts: Disabled}`, matching: "p", shaping: "p", owners: "nodePorts=p",
		},
		{
			name: "another namespace", ns: labels.Set{"team": "other"}, labels: labels.Set{"app": "cart"},
			policies:  []ServicePolicy{servicePolicy(t, "p", 0, "team=shop", "app=cart", `{nodePorts: Disabled}`)},
			overrides: `{}`,
		},
		{
			name: "another Service", ns: labels.Set{"team": "shop"},
			policies:  []ServicePolicy{servicePolicy(t, "p", 0, "team=shop", "app=cart", `{nodePorts: Disabled}`)},
			overrides: `{}`,
		},
		{
			name: "field by field, by priority, then by name",
			policies: []ServicePolicy{
				servicePolicy(t, "a", 1, "", "", `{nodePorts: Enabled, ipvsScheduler: sh}`),
				servicePolicy(t, "c", 2, "", "", `{nodePorts: Disabled}`),
				servicePolicy(t, "b", 1, "", "", `{ipvsScheduler: rr, externalIPs: Disabled}`),
				servicePolicy(t, "d", -1, "", "", `{nodePorts: Disabled, ipvsScheduler: sh}`),
			},
			overrides: `{nodePorts: Disabled, ipvsScheduler: sh, externalIPs: Disabled}`,
			matching:  "c a b d", shaping: "c a b", owners: "externalIPs=b ipvsScheduler=a nodePorts=c",
			overridden: "a.nodePorts<c b.ipvsScheduler<a",
		},
		{
			name: "ranges and session affinity each as a whole",
			policies: []ServicePolicy{
				servicePolicy(t, "a", 1, "", "", `{loadBalancerSourceRanges: [192.0.2.0/24], sessionAffinity: {clientIPTimeoutSeconds: 5}}`),
				servicePolicy(t, "b", 0, "", "", `{loadBalancerSourceRanges: [198.51.100.0/24], sessionAffinity: {clientIPTimeoutSeconds: 7}}`),
			},
			overrides: `{loadBalancerSourceRanges: [192.0.2.0/24], sessionAffinity: {clientIPTimeoutSeconds: 5}}`,
			matching:  "a b", shaping: "a", owners: "loadBalancerSourceRanges=a sessionAffinity=a",
			overridden: "b.loadBalancerSourceRanges<a b.sessionAffinity<a",
		},
		{
			name: "every field",
			policies: []ServicePolicy{servicePolicy(t, "p", 0, "", "", `{loadBalancerSourceRanges: [192.0.2.0/24], nodePorts: Disabled, externalIPs: Disabled,
				internalTrafficPolicy: Local, externalTrafficPolicy: Local, sessionAffinity: {clientIPTimeoutSeconds: 5}, ipvsScheduler: mh}`)},
			overrides: `{loadBalancerSourceRanges: [192.0.2.0/24], nodePorts: Disabled, externalIPs: Disabled,
				internalTrafficPolicy: Local, externalTrafficPolicy: Local, sessionAffinity: {clientIPTimeoutSeconds: 5}, ipvsScheduler: mh}`,
			matching: "p", shaping: "p",
			owners: "externalIPs=p externalTrafficPolicy=p internalTrafficPolicy=p ipvsScheduler=p loadBalancerSourceRanges=p nodePorts=p sessionAffinity=p",
		},
		{
			name:     "a policy that sets nothing",
			policies: []ServicePolicy{servicePolicy(t, "empty", 0, "", "", `{}`), {Name: "nil", Namespaces: labels.Everything(), Services: labels.Everything()}},
			matching: "empty nil", overrides: `{}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := NewServices(tt.policies).Resolve(tt.ns, tt.labels)
			if diff := cmp.Diff(overrides(t, tt.overrides), &r.Overrides); diff != "" {
				t.Errorf("overrides (-want +got):\n%s", diff)
			}
			var lost []string
			for name, fields := range r.Overridden {
				lost = append(lost, strings.Fields(pairs(fields, name+".", "<"))...)
			}
			for _, c := range [][2]string{
				{tt.matching, strings.Join(r.Matching, " ")}, {tt.shaping, strings.Join(r.Policies, " ")},
				{tt.owners, pairs(r.Owners, "", "=")}, {tt.overridden, joined(lost)},
			} {
				if c[0] != c[1] {
					t.Errorf("got %q, want %q", c[1], c[0])
				}
			}
			// In whatever order the API lists them.
			rand.Shuffle(len(tt.policies), func(i, j int) { tt.policies[i], tt.policies[j] = tt.policies[j], tt.policies[i] })
			if diff := cmp.Diff(r, NewServices(tt.policies).Resolve(tt.ns, tt.labels)); diff != "" {
				t.Errorf("in another order:\n%s", diff)
			}
		})
	}
}

// TestManyServicePolicies are distinguished, each by what selects a Service alone.
func TestManyServicePolicies(t *testing.T) {
	var all []ServicePolicy
	for i := range int32(20) {
		all = append(all, servicePolicy(t, fmt.Sprintf("p%02d", i), 0, "", fmt.Sprintf("s%d", i), fmt.Sprintf(`{sessionAffinity: {clientIPTimeoutSeconds: %d}}`, i+1)))
	}
	s := NewServices(all)
	for i := range int32(20) {
		r := s.Resolve(nil, labels.Set{fmt.Sprintf("s%d", i): ""})
		if a := r.Overrides.SessionAffinity; a == nil || a.ClientIPTimeoutSeconds != i+1 || strings.Join(r.Policies, " ") != all[i].Name {
			t.Errorf("by policy %s the affinity is %+v, and the policies are %q", all[i].Name, a, r.Policies)
		}
	}
}

func TestServicePolicyOf(t *testing.T) {
	const good = `namespaceSelector: {}, serviceSelector: {}`
	tests := []struct {
		name, spec string
		wrong      []string
	}{
		{name: "good", spec: `{priority: 7, ` + good + `, overrides: {nodePorts: Disabled, loadBalancerSourceRanges: [192.0.2.0/24, "2001:db8::/64"]}}`},
		{name: "selectors", spec: `{namespaceSelector: {matchLabels: {team: "a b"}}, serviceSelector: {matchExpressions: [{key: app, operator: Near}]}, overrides: {}}`,
			wrong: []string{"spec.namespaceSelector.matchLabels[team]", "spec.serviceSelector.matchExpressions[0].operator"}},
		{name: "ranges", spec: `{` + good + `, overrides: {loadBalancerSourceRanges: [192.0.2.0/24, 192.0.2.0/33, "::ffff:192.0.2.0/120"]}}`,
			wrong: []string{`spec.overrides.loadBalancerSourceRanges[1]: Invalid value: "192.0.2.0/33": must be a CIDR`, "spec.overrides.loadBalancerSourceRanges[2]"}},
		{name: "too many ranges", spec: `{` + good + `, overrides: {loadBalancerSourceRanges: [` + strings.Repeat("192.0.2.0/24, ", 257) + `]}}`,
			wrong: []string{"spec.overrides.loadBalancerSourceRanges: Too many: 257: must have at most 256 items"}},
		{name: "no ranges", spec: `{` + good + `, overrides: {loadBalancerSourceRanges: []}}`, wrong: []string{"spec.overrides.loadBalancerSourceRanges: Required value"}},
		{name: "words", spec: `{` + good + `, overrides: {nodePorts: No, externalIPs: "off", internalTrafficPolicy: local, externalTrafficPolicy: "", ipvsScheduler: fastest}}`,
			wrong: []string{"spec.overrides.nodePorts", "spec.overrides.externalIPs", "spec.overrides.internalTrafficPolicy", "spec.overrides.externalTrafficPolicy",
				`spec.overrides.ipvsScheduler: Unsupported value: "fastest": supported values: "rr"`}},
		{name: "affinity", spec: `{` + good + `, overrides: {sessionAffinity: {clientIPTimeoutSeconds: 0}}}`,
			wrong: []string{"spec.overrides.sessionAffinity.clientIPTimeoutSeconds: Invalid value: 0: must be 1 to 86400 (a day)"}},
		{name: "long affinity", spec: `{` + good + `, overrides: {sessionAffinity: {clientIPTimeoutSeconds: 86401}}}`,
			wrong: []string{"spec.overrides.sessionAffinity.clientIPTimeoutSeconds"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &v1alpha1.ServiceProxyPolicy{}
			p.Name = "p"
			spec := strings.ReplaceAll(tt.spec, "nodePorts: No,", `nodePorts: "No",`)
			if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
				t.Fatal(err)
			}
			got, errs := ServicePolicyOf(p)
			if len(errs) != len(tt.wrong) {
				t.Errorf("%d mistakes, want %d: %v", len(errs), len(tt.wrong), errs.ToAggregate())
			}
			for _, text := range tt.wrong {
				if !strings.Contains(fmt.Sprint(errs.ToAggregate()), text) {
					t.Errorf("%v does not hold %q", errs.ToAggregate(), text)
				}
			}
			if tt.wrong == nil && (got.Name != "p" || got.Priority != 7 || !got.Selects(nil, nil) || got.Overrides.NodePorts == nil) {
				t.Errorf("got %+v", got)
			}
			if selectors := strings.Contains(tt.spec, "namespaceSelector: {}"); (got.Namespaces != nil) != selectors || (got.Services != nil) != selectors {
				t.Errorf("selectors %v and %v", got.Namespaces, got.Services)
			}
		})
	}
}

// BenchmarkServiceResolution resolves 5,000 Services afresh: what a change of a policy
// costs at most.
func BenchmarkServiceResolution(b *testing.B) {
	const policies, services = 100, 5000
	var all []ServicePolicy
	for i := range policies {
		all = append(all, servicePolicy(b, fmt.Sprintf("policy-%d", i), int32(i%7), fmt.Sprintf("team=t%d", i%50), fmt.Sprintf("tier in (a%d, b%d)", i%3, i%2), `{nodePorts: Disabled, ipvsScheduler: sh}`)) //nolint:gosec // small
	}
	b.ReportAllocs()
	for b.Loop() {
		s := NewServices(all)
		for i := range services {
			s.Resolve(labels.Set{"team": fmt.Sprintf("t%d", i%50), "kubernetes.io/metadata.name": "ns"}, labels.Set{"tier": fmt.Sprintf("a%d", i%3), "app": "x"})
		}
	}
}

package preview_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/config/crd"
	"github.com/nodeproxy-io/nodeproxy/controllers/manifest"
	"github.com/nodeproxy-io/nodeproxy/controllers/preview"
)

// cluster has three nodes, of which two are of the pool edge, and two Services.
const cluster = `
{apiVersion: nodeproxy.io/v1alpha1, kind: NodeProxy, metadata: {name: cluster}, spec: {}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {pool: edge}}, spec: {podCIDR: 10.244.1.0/24}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {pool: edge}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n3}}
---
{apiVersion: v1, kind: Node, metadata: {name: windows, labels: {kubernetes.io/os: windows, pool: edge}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: shop}}}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop, labels: {app: cart}}
spec:
  type: NodePort
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1]
  ipFamilies: [IPv4]
  ports: [{name: http, port: 80, nodePort: 30080}]
---
{apiVersion: v1, kind: Service, metadata: {name: pay, namespace: shop}, spec: {clusterIP: 10.96.0.2, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: headless, namespace: shop}, spec: {clusterIP: None, ports: [{port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.1.5], nodeName: n1}, {addresses: [10.244.2.5], nodeName: n2}]
`

const edge = `
apiVersion: nodeproxy.io/v1alpha1
kind: NodeProxyPolicy
metadata: {name: edge}
spec: {priority: 10, nodeSelector: {matchLabels: {pool: edge}}, settings: {mode: IPVS, ipvs: {scheduler: lc}}}
`

const closed = `
apiVersion: nodeproxy.io/v1alpha1
kind: ServiceProxyPolicy
metadata: {name: closed}
spec: {namespaceSelector: {matchLabels: {team: shop}}, serviceSelector: {}, overrides: {nodePorts: Disabled}}
`

// read reads objects, of texts in YAML.
func read(t testing.TB, texts ...string) *preview.Objects {
	t.Helper()
	got, err := manifest.Parse(t.Context(), crd.Bases(), []manifest.File{{Name: "f", Text: []byte(strings.Join(texts, "\n---\n"))}})
	if err != nil {
		t.Fatal(err)
	}
	return &got.Objects
}

// printed is what is printed of a result.
func printed(t testing.TB, r *preview.Result) string {
	t.Helper()
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// stored are objects after all that was rendered from before has been stored with them.
func stored(t testing.TB, before []string, now ...string) *preview.Objects {
	t.Helper()
	return read(t, append(now, printed(t, preview.Render(read(t, before...))))...)
}

// brief names rendered objects with what policies make of them.
func brief(r *preview.Result) []string {
	var out []string
	for i := range r.Nodes {
		s := &r.Nodes[i].Spec
		out = append(out, fmt.Sprintf("%s %s %s %v", r.Nodes[i].Name, *s.Settings.Mode, *s.Settings.IPVS.Scheduler, s.Policies))
	}
	for i := range r.Services {
		s := &r.Services[i].Spec
		out = append(out, fmt.Sprintf("%s %s %s %v", r.Services[i].Name, s.PortSummary, s.IPVSScheduler, s.Policies))
	}
	return out
}

func TestRender(t *testing.T) {
	plain := []string{"n1 IPTables rr []", "n2 IPTables rr []", "n3 IPTables rr []", "shop.cart 80:30080/TCP  []", "shop.pay 80/TCP  []"}
	withEdge := []string{"n1 IPVS lc [edge]", "n2 IPVS lc [edge]", "n3 IPTables rr []", "shop.cart 80:30080/TCP  []", "shop.pay 80/TCP  []"}
	// Past what the API takes: stored before a rule existed.
	invalid := func(o *preview.Objects) { *o.NodePolicies[0].Spec.Settings.IPVS.Scheduler = "fastest" }
	withoutSelector := func(o *preview.Objects) {
		o.NodePolicies[0].Spec.NodeSelector.MatchLabels = map[string]string{"a b": ""}
	}
	invalidRanges := func(o *preview.Objects) { o.ServicePolicies[0].Spec.Overrides.LoadBalancerSourceRanges = []string{"x"} }
	noDeadline := func(o *preview.Objects) {
		o.NodePolicies[0].Spec.Rollout = &v1alpha1.RolloutSettings{ProgressDeadlineSeconds: new(int32)}
	}
	stuck := func(o *preview.Objects) {
		o.NodeProxy.Spec.Rollout = &v1alpha1.RolloutSettings{MaxUnavailable: new(intstr.FromInt32(0))}
	}
	withoutNodeProxy := func(o *preview.Objects) { o.NodeProxy = nil }
	for name, c := range map[string]struct {
		before, now     []string // what was rendered is stored with what is now
		edit            func(*preview.Objects)
		want            []string
		problems, notes []string
	}{
		"no policies": {now: []string{cluster}, want: plain},
		"both kinds": {now: []string{cluster, edge, closed}, want: []string{
			"n1 IPVS lc [edge]", "n2 IPVS lc [edge]", "n3 IPTables rr []", "shop.cart 80/TCP  [closed]", "shop.pay 80/TCP  [closed]"}},
		"stronger ones": {
			now: []string{cluster, edge, `{apiVersion: nodeproxy.io/v1alpha1, kind: NodeProxyPolicy, metadata: {name: all},
				spec: {priority: 11, nodeSelector: {}, settings: {ipvs: {scheduler: sh}, fallback: IPTables}}}`},
			want:  []string{"n1 IPVS sh [all edge]", "n2 IPVS sh [all edge]", "n3 IPTables sh [all]", "shop.cart 80:30080/TCP  []", "shop.pay 80/TCP  []"},
			notes: []string{"NodeProxyPolicy edge: spec.settings.ipvs.scheduler is set by NodeProxyPolicy all on 2 nodes"},
		},
		"of Services, too": {
			now: []string{cluster, closed, strings.NewReplacer("name: closed", "name: cart", "serviceSelector: {}", "serviceSelector: {matchLabels: {app: cart}}, priority: 1",
				"Disabled", "Enabled, ipvsScheduler: sh").Replace(closed)},
			want:  slices.Concat(plain[:3], []string{"shop.cart 80:30080/TCP sh [cart]", "shop.pay 80/TCP  [closed]"}),
			notes: []string{"ServiceProxyPolicy closed: spec.overrides.nodePorts is set by ServiceProxyPolicy cart on 1 Service"},
		},
		"no effect": {
			now:   []string{cluster, strings.Replace(closed, "nodePorts: Disabled", "loadBalancerSourceRanges: [10.0.0.0/8]", 1)},
			want:  slices.Concat(plain[:3], []string{"shop.cart 80:30080/TCP  [closed]", "shop.pay 80/TCP  [closed]"}),
			notes: []string{"has no effect on 1 Service (shop/pay): spec.overrides.loadBalancerSourceRanges only applies to", "(shop/cart)"},
		},
		"nothing selected": {
			now:   []string{cluster, strings.Replace(edge, "pool: edge", "pool: none", 1), strings.Replace(closed, "team: shop", "team: none", 1)},
			want:  plain,
			notes: []string{"NodeProxyPolicy edge selects no node", "ServiceProxyPolicy closed selects no Service"},
		},
		"Namespace unknown": {
			now:   []string{strings.Replace(cluster, "name: shop, labels", "name: other, labels", 1), strings.Replace(closed, "team: shop", "kubernetes.io/metadata.name: shop", 1)},
			want:  slices.Concat(plain[:3], []string{"shop.cart 80/TCP  [closed]", "shop.pay 80/TCP  [closed]"}),
			notes: []string{"1 namespace of Services not among the objects, assumed to have no labels but kubernetes.io/metadata.name (shop)"},
		},
		"not as stored": {
			now:   []string{cluster, "{apiVersion: v1, kind: Service, metadata: {name: new, namespace: shop}, spec: {ports: [{port: 80}]}}"},
			want:  plain,
			notes: []string{"skipped 1 Service without spec.clusterIP"},
		},
		"a policy that makes no sense": {
			before: []string{cluster}, now: []string{cluster, edge}, edit: invalid, want: plain,
			problems: []string{"NodeProxyPolicy edge is not valid, and nodes that it selects retain their settings: spec.settings.ipvs.scheduler"},
		},
		"a budget that makes none": {
			before: []string{cluster}, now: []string{cluster, edge}, edit: noDeadline, want: plain,
			problems: []string{"NodeProxyPolicy edge is not valid, and nodes that it selects retain their settings: spec.rollout.progressDeadlineSeconds"},
		},
		"one of NodeProxy": {
			now: []string{cluster}, edit: stuck, want: plain,
			problems: []string{"NodeProxy cluster pauses all changes of settings because spec.rollout is not valid: spec.rollout.maxUnavailable"},
		},
		"one that did": {
			before: []string{cluster, edge}, now: []string{cluster, edge}, edit: invalid, want: withEdge,
			problems: []string{"NodeProxyPolicy edge is not valid"},
		},
		"one with an invalid selector": {
			before: []string{cluster, edge}, now: []string{cluster, edge}, edit: withoutSelector, want: withEdge,
			problems: []string{"spec.nodeSelector.matchLabels[a b]"},
		},
		"ranges that make no sense": {
			before: []string{cluster}, now: []string{cluster, closed}, edit: invalidRanges, want: plain,
			problems: []string{"ServiceProxyPolicy closed is not valid, and Services that it selects retain their overrides: spec.overrides.loadBalancerSourceRanges[0]"},
		},
		"ranges that did make sense": {
			before: []string{cluster, closed}, now: []string{cluster, closed}, edit: func(o *preview.Objects) {
				invalidRanges(o)
				for i := range o.ServiceRules {
					o.ServiceRules[i].Annotations = map[string]string{v1alpha1.AnnotationOverrides: `{"overrides": {"nodePorts": "Disabled"}}`}
				}
			},
			want:     slices.Concat(plain[:3], []string{"shop.cart 80/TCP  [closed]", "shop.pay 80/TCP  [closed]"}),
			problems: []string{"ServiceProxyPolicy closed is not valid"},
		},
		"ranges that did, and are no longer known": {
			before: []string{cluster, closed}, now: []string{cluster, closed}, edit: invalidRanges, want: plain,
			problems: []string{"ServiceProxyPolicy closed is not valid"},
		},
		"no sense together": {
			before: []string{cluster, edge},
			now: []string{cluster, strings.Replace(edge, "mode: IPVS", "sync: {minIntervalMilliseconds: 90000}", 1), `{apiVersion: nodeproxy.io/v1alpha1, kind: NodeProxyPolicy,
				metadata: {name: often}, spec: {nodeSelector: {}, settings: {sync: {verifyIntervalSeconds: 10}}}}`},
			want:     append([]string{"n1 IPVS lc [edge]", "n2 IPVS lc [edge]", "n3 IPTables rr [often]"}, plain[3:]...),
			problems: []string{"NodeProxyPolicy edge: combined with the other policies, the settings of 2 nodes (n1, n2) are not valid; existing nodes retain theirs, and new ones get none from it: spec.settings.sync.verifyIntervalSeconds"},
		},
		"no sense together, on new nodes": {
			now:      []string{cluster, strings.Replace(edge, "mode: IPVS", "sync: {minIntervalMilliseconds: 90000}", 1)},
			want:     plain,
			problems: []string{"NodeProxyPolicy edge: combined with the other policies, the settings of 2 nodes ("},
		},
		"more local endpoints than a node takes": {
			now: []string{cluster}, edit: crowdedNode, want: plain,
			problems: []string{"Service evil/crowd: the rules of node n1 do not contain its local endpoints: they take "},
		},
		"no NodeProxy": {
			now: []string{cluster, edge}, edit: withoutNodeProxy, want: nil,
			problems: []string{"there is no NodeProxy cluster"},
		},
		"NodeProxy gone": {
			before: []string{cluster, edge}, now: []string{cluster}, edit: withoutNodeProxy, want: withEdge,
			problems: []string{"there is no NodeProxy cluster"},
		},
		"a Node gone": {
			before: []string{cluster, edge}, now: []string{strings.Replace(cluster, "name: n1, labels", "name: n9, labels", 1), edge},
			want: slices.Insert(slices.Clone(withEdge), 3, "n9 IPVS lc [edge]"),
		},
		"Services gone": {before: []string{cluster}, now: []string{strings.Replace(cluster, "clusterIP: 10.96.0.2", "clusterIP: None", 1)}, want: plain[:4]},
	} {
		t.Run(name, func(t *testing.T) {
			o := read(t, c.now...)
			if c.before != nil {
				o = stored(t, c.before, c.now...)
			}
			if c.edit != nil {
				c.edit(o)
			}
			got := preview.Render(o)
			if diff := cmp.Diff(c.want, brief(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			compare(t, "problems", got.Problems, c.problems)
			compare(t, "notes", got.Notes, c.notes)
		})
	}
}

// crowdedNode has one Service with more on n1 than its NodeProxyRules takes.
func crowdedNode(o *preview.Objects) {
	slice := discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "evil", Name: "crowd", Labels: map[string]string{discoveryv1.LabelServiceName: "crowd"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := range 240 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.9.%d.%d", i/250, 1+i%250)}, NodeName: new("n1")})
	}
	for i := range 100 {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprintf("p%d", i)), Port: new(int32(8000 + i))}) //nolint:gosec // small
	}
	o.Slices = append(o.Slices, slice)
}

func compare(t *testing.T, what string, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
		return
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("%s: got %q, want %q", what, got[i], want[i])
		}
	}
}

// Cleanup of NodeProxy is the end of rendering.
func TestBeingRemoved(t *testing.T) {
	o := stored(t, []string{cluster}, strings.Replace(cluster, "name: cluster}, spec: {}", "name: cluster, deletionTimestamp: '2026-11-01T08:00:00Z'}, spec: {removalPolicy: Cleanup}", 1))
	got := preview.Render(o)
	if len(got.Nodes)+len(got.Services) > 0 || len(got.Problems) != 1 || !strings.Contains(got.Problems[0], "being deleted") {
		t.Errorf("got %v, %v", brief(got), got.Problems)
	}
}

func TestOverlay(t *testing.T) {
	names := func(o *preview.Objects) (out []string) {
		if o.NodeProxy != nil {
			out = append(out, "NodeProxy "+string(*o.NodeProxy.Spec.Settings.Mode))
		}
		for i := range o.NodePolicies {
			out = append(out, fmt.Sprintf("%s %d", o.NodePolicies[i].Name, *o.NodePolicies[i].Spec.Priority))
		}
		for i := range o.ServicePolicies {
			out = append(out, o.ServicePolicies[i].Name)
		}
		return append(out, fmt.Sprint(len(o.Nodes)))
	}
	live := func() *preview.Objects {
		o := read(t, cluster, edge, strings.Replace(edge, "name: edge", "name: other", 1), closed)
		mode := v1alpha1.ModeIPTables
		o.NodeProxy.Spec.Settings = &v1alpha1.WrittenSettings{Mode: &mode}
		return o
	}
	files := read(t, strings.NewReplacer("priority: 10", "priority: 20").Replace(edge), strings.Replace(closed, "name: closed", "name: more", 1),
		"{apiVersion: nodeproxy.io/v1alpha1, kind: NodeProxy, metadata: {name: cluster}, spec: {settings: {mode: IPVS}}}")
	o := live()
	o.Overlay(files, false)
	if diff := cmp.Diff([]string{"NodeProxy IPVS", "other 10", "edge 20", "closed", "more", "4"}, names(o)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	o = live()
	o.Overlay(files, true)
	if diff := cmp.Diff([]string{"NodeProxy IPVS", "edge 20", "more", "4"}, names(o)); diff != "" {
		t.Errorf("pruned (-want +got):\n%s", diff)
	}
	o = live()
	files.NodeProxy = nil
	o.Overlay(files, true)
	if got := names(o)[0]; got != "NodeProxy IPTables" {
		t.Errorf("without a NodeProxy in files: %s", got)
	}
}

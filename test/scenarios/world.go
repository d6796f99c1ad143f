package scenarios

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// World is one node with the objects of a cluster and what follows from them.
type World struct {
	*testing.T
	Family dataplane.Family
	// Settings are the node's, as people write them. The range of pods is
	// 10.0.0.0/8 and fd00::/56 unless changed.
	Settings *v1alpha1.ProxySettings
	Node     *corev1.Node
	// Overrides are what policies make of all Services. Nil: nothing.
	Overrides *v1alpha1.ServiceOverrides
	// Cluster is what there is at addresses that Services name.
	Cluster render.Cluster
	// Full makes the next Sync read and compare all of the kernel.
	Full bool

	// Rules are what was last rendered.
	Rules struct {
		Node     v1alpha1.NodeProxyRules
		Services []v1alpha1.ServiceProxyRules
	}

	services map[types.NamespacedName]*corev1.Service
	slices   map[types.NamespacedName]*discoveryv1.EndpointSlice

	newPlane func() dataplane.Dataplane
	plane    dataplane.Dataplane
	held     map[dataplane.ServiceName]*dataplane.Service
	former   *dataplane.Node // nil before the first Apply
	// mayReject: Services that are rejected are noted and no failure.
	mayReject bool
	rejected  map[dataplane.ServiceName]string
	// drains: the kernel has real servers that drain, of which a fresh plan
	// knows nothing.
	drains bool
	// unchecked: what a Sync leaves in the kernel is not compared.
	unchecked bool
}

var (
	addresses4 = addrs("192.168.0.2", "192.168.1.2", "192.168.99.11")
	addresses6 = addrs("2001:db8::2", "2001:db8:1::2")
)

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// New makes a node in zone-a without Services. newPlane makes what programs it;
// it is called again to compare what is there to a fresh plan.
func New(t *testing.T, family dataplane.Family, newPlane func() dataplane.Dataplane) *World {
	return &World{
		T: t, Family: family, newPlane: newPlane, plane: newPlane(),
		Settings: &v1alpha1.ProxySettings{DetectLocal: &v1alpha1.DetectLocalSettings{
			Mode: v1alpha1.DetectLocalClusterCIDR, ClusterCIDRs: []string{"10.0.0.0/8", "fd00::/56"},
		}},
		Node:     node("zone-a", slices.Concat(addresses4[:1], addresses6[:1])),
		services: map[types.NamespacedName]*corev1.Service{},
		slices:   map[types.NamespacedName]*discoveryv1.EndpointSlice{},
		held:     map[dataplane.ServiceName]*dataplane.Service{},
	}
}

// Add creates or replaces Services with their EndpointSlices.
func (w *World) Add(list ...Service) {
	for i := range list {
		o := list[i].object()
		w.services[types.NamespacedName{Namespace: o.Namespace, Name: o.Name}] = o
		w.addSlices(list[i].slices()...)
	}
}

func (w *World) addSlices(list ...*discoveryv1.EndpointSlice) {
	for _, s := range list {
		w.slices[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] = s
	}
}

// Sync lets what follows from the objects come to the kernel.
func (w *World) Sync() {
	w.Helper()
	bySvc := map[types.NamespacedName][]*discoveryv1.EndpointSlice{}
	for _, s := range w.slices {
		if name, ok := render.ServiceOf(s); ok {
			bySvc[name] = append(bySvc[name], s)
		}
	}
	nodeRules := w.renderNode(bySvc)
	w.Rules.Node = v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: w.Node.Name}, Spec: *nodeRules}
	w.Rules.Services = nil
	for name, o := range w.services {
		if !render.Eligible(o) {
			continue
		}
		rules, _ := render.Service(o, bySvc[name], render.Shape{Overrides: w.Overrides}, w.Cluster, v1alpha1.FormatVersion)
		w.Rules.Services = append(w.Rules.Services, *throughJSON(w.T, rules))
	}
	set, err := combine.Whole(&w.Rules.Node, w.Rules.Services, w.Family)
	if err != nil {
		w.Fatal(err)
	}
	if len(set.Problems)+len(set.LeftOut) > 0 {
		w.Errorf("what is rendered cannot be used: %q, %q", set.Problems, set.LeftOut)
	}
	w.apply(set.Services, nodeRules)
}

func (w *World) renderNode(bySvc map[types.NamespacedName][]*discoveryv1.EndpointSlice) *v1alpha1.NodeProxyRulesSpec {
	w.Helper()
	settings, err := render.CompleteSettings(w.Settings)
	if err != nil {
		w.Fatal(err)
	}
	var all []render.ServiceSlices
	for name, list := range bySvc {
		all = append(all, render.ServiceSlices{Service: name, Slices: list})
	}
	local := render.LocalEndpoints(w.Node.Name, all, nil).Services
	spec, ok := render.Node(render.NodeInput{Node: w.Node, Settings: settings, LocalEndpoints: local, FormatVersion: v1alpha1.FormatVersion})
	if !ok {
		w.Fatal("no rules are rendered for the node")
	}
	return throughJSON(w.T, &spec)
}

// throughJSON is what the API server would give back.
func throughJSON[T any](t *testing.T, in *T) *T {
	t.Helper()
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	out := new(T)
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func (w *World) apply(services map[dataplane.ServiceName]*dataplane.Service, node *v1alpha1.NodeProxyRulesSpec) {
	w.Helper()
	r := &dataplane.Ruleset{
		Node:     dataplane.Node{Settings: v1alpha1.CompleteSettings(&node.Settings)},
		Services: services, Dirty: map[dataplane.ServiceName]struct{}{}, Prune: true,
	}
	r.Mode = r.Node.Settings.Mode.Kernel()
	for _, text := range node.Node.Addresses {
		if a := netip.MustParseAddr(text); w.Family.Of(a) {
			r.Node.Addresses = append(r.Node.Addresses, a)
		}
	}
	for _, text := range node.Node.PodCIDRs {
		if p := netip.MustParsePrefix(text); w.Family.Of(p.Addr()) {
			r.Node.PodCIDRs = append(r.Node.PodCIDRs, p)
		}
	}
	r.Full, w.Full = w.Full || w.former == nil || !reflect.DeepEqual(*w.former, r.Node), false
	for name, s := range services {
		if !combine.Equal(w.held[name], s) {
			r.Dirty[name] = struct{}{}
		}
	}
	for name := range w.held {
		if services[name] == nil {
			r.Dirty[name] = struct{}{}
		}
	}
	result, err := w.plane.Apply(w.Context(), r)
	if err != nil {
		w.Fatal(err)
	}
	w.held, w.former, w.rejected = services, &r.Node, result.Rejected
	if len(result.Rejected) > 0 {
		if !w.mayReject {
			w.Fatalf("rejected: %v", result.Rejected)
		}
		return
	}
	if w.unchecked {
		return
	}
	r.Dirty, r.Full = nil, false
	fresh := w.newPlane()
	if w.drains {
		fresh = w.plane
	}
	d, err := fresh.Verify(w.Context(), r, dataplane.VerifyOptions{})
	if err != nil || d.Count > 0 {
		w.Fatalf("the kernel differs from a fresh plan: %q, %v", d.Examples, err)
	}
}

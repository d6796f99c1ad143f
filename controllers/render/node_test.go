package render

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func node(edit ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{}
	n.Name = "edge-1"
	n.Labels = map[string]string{corev1.LabelTopologyZone: "zone-a"}
	n.Spec.PodCIDRs = []string{"10.244.1.0/24", "fd00:10:244:1::/64"}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeExternalIP, Address: "203.0.113.5"},
		{Type: corev1.NodeHostName, Address: "edge-1"},
		{Type: corev1.NodeInternalIP, Address: "192.0.2.021"},
		{Type: corev1.NodeInternalIP, Address: "2001:db8:0::21"},
		{Type: corev1.NodeInternalIP, Address: "192.0.2.21"},
	}
	for _, e := range edit {
		e(n)
	}
	return n
}

func TestLinux(t *testing.T) {
	for name, c := range map[string]struct {
		label, reported string
		want            bool
	}{
		"labelled linux":                 {label: "linux", want: true},
		"labelled windows":               {label: "windows"},
		"reported linux":                 {reported: "linux", want: true},
		"reported windows":               {reported: "windows"},
		"the label outweighs the report": {label: "linux", reported: "windows", want: true},
		"not reported":                   {want: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(func(n *corev1.Node) {
				n.Labels[corev1.LabelOSStable] = c.label
				n.Status.NodeInfo.OperatingSystem = c.reported
			})
			if got := Linux(n); got != c.want {
				t.Errorf("Linux = %v", got)
			}
		})
	}
}

func TestNodeFacts(t *testing.T) {
	want := v1alpha1.NodeFacts{
		Addresses: []string{"192.0.2.21", "2001:db8::21", "203.0.113.5"},
		PodCIDRs:  []string{"10.244.1.0/24", "fd00:10:244:1::/64"},
		Zone:      "zone-a",
	}
	if diff := cmp.Diff(want, NodeFacts(node())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, edit := range map[string]func(*corev1.Node){
		"being deleted": func(n *corev1.Node) { now := created; n.DeletionTimestamp = &now },
		"about to be deleted": func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "other"}, {Key: TaintToBeDeleted, Effect: corev1.TaintEffectPreferNoSchedule}}
		},
	} {
		if !NodeFacts(node(edit)).Draining {
			t.Errorf("%s: not draining", name)
		}
	}
	if NodeFacts(node(func(n *corev1.Node) { n.Spec.Unschedulable = true; n.Spec.Taints = []corev1.Taint{{Key: "other"}} })).Draining {
		t.Error("another taint counts as draining")
	}
}

func TestNode(t *testing.T) {
	settings, err := CompleteSettings(nil)
	if err != nil {
		t.Fatal(err)
	}
	audit := v1alpha1.Audit
	stored := &v1alpha1.NodeProxyRules{Spec: v1alpha1.NodeProxyRulesSpec{
		FormatVersion: 1, SettingsRevision: "0badcafe", Settings: v1alpha1.ProxySettings{Enforcement: &audit},
		Policies: []string{"edge-pool"}, Node: v1alpha1.NodeFacts{Zone: "zone-z"},
	}}
	local := []v1alpha1.ServiceLocalEndpoints{{Namespace: "shop", Name: "cart"}}
	fresh := v1alpha1.NodeProxyRulesSpec{
		FormatVersion: 2, SettingsRevision: settings.Revision, Settings: settings.Complete, Node: NodeFacts(node()), LocalEndpoints: local,
	}
	edited := func(edit func(*v1alpha1.NodeProxyRulesSpec)) *v1alpha1.NodeProxyRulesSpec {
		s := fresh.DeepCopy()
		edit(s)
		return s
	}
	preserved := func(s *v1alpha1.NodeProxyRulesSpec) {
		s.SettingsRevision, s.Settings = "0badcafe", stored.Spec.Settings
		s.Policies, s.PolicySummary = stored.Spec.Policies, "edge-pool"
	}
	absent := func(s *v1alpha1.NodeProxyRulesSpec) {
		s.Node = v1alpha1.NodeFacts{Zone: "zone-z", Draining: true}
	}
	for name, c := range map[string]struct {
		in   NodeInput
		want *v1alpha1.NodeProxyRulesSpec
	}{
		"new":                    {in: NodeInput{Node: node(), Settings: settings, LocalEndpoints: local}, want: &fresh},
		"new, no settings":       {in: NodeInput{Node: node(), LocalEndpoints: local}},
		"neither Node nor rules": {in: NodeInput{Settings: settings, LocalEndpoints: local}},
		"stored":                 {in: NodeInput{Node: node(), Current: stored, Settings: settings, LocalEndpoints: local}, want: &fresh},
		"stored, no settings":    {in: NodeInput{Node: node(), Current: stored, LocalEndpoints: local}, want: edited(preserved)},
		"Node gone":              {in: NodeInput{Current: stored, Settings: settings, LocalEndpoints: local}, want: edited(absent)},
		"Node gone and no settings": {in: NodeInput{Current: stored, LocalEndpoints: local},
			want: edited(func(s *v1alpha1.NodeProxyRulesSpec) { preserved(s); absent(s) })},
	} {
		t.Run(name, func(t *testing.T) {
			c.in.FormatVersion = 2
			got, ok := Node(c.in)
			if ok != (c.want != nil) {
				t.Fatalf("rendered: %v", ok)
			}
			if !ok {
				return
			}
			if diff := cmp.Diff(*c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestInventory(t *testing.T) {
	if diff := cmp.Diff(v1alpha1.Inventory{Hash: "0000000000000000"}, Inventory(nil)); diff != "" {
		t.Error(diff)
	}
	one, two := Inventory([]string{"shop.cart", "a.b"}), Inventory([]string{"a.b", "shop.cart"})
	if one != two || one.Services != 2 {
		t.Errorf("%v and %v differ", one, two)
	}
	// The sum of two 64-bit FNV-1a hashes. Agents of other releases compute it too.
	if one.Hash != "404f857119e364db" {
		t.Errorf("hash %s", one.Hash)
	}
	if Inventory([]string{"shop.cart", "a.c"}).Hash == one.Hash {
		t.Error("other names, same hash")
	}
}

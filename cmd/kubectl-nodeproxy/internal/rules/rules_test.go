package rules

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

// TestEndpoints: the report explains why a node uses each endpoint or not: by its state, and
// by the zones and nodes of its hints.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	node := &v1alpha1.NodeProxyRules{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
		Spec: v1alpha1.NodeProxyRulesSpec{
			FormatVersion: 1, Settings: *v1alpha1.CompleteSettings(nil), Node: v1alpha1.NodeFacts{Zone: "a"},
			LocalEndpoints: []v1alpha1.ServiceLocalEndpoints{{Namespace: "shop", Name: "web", Ports: []v1alpha1.PortLocalEndpoints{
				{Name: "http", Protocol: v1alpha1.ProtocolTCP, Endpoints: []string{"10.244.1.2:8080", "10.244.1.3:8080"}},
			}}},
		},
	}
	object := v1alpha1.ServiceProxyRules{
		ObjectMeta: metav1.ObjectMeta{Name: "shop.web"},
		Spec: v1alpha1.ServiceProxyRulesSpec{
			FormatVersion: 1, ClusterIPs: []string{"10.96.0.20"}, ServiceCreated: metav1.NewTime(time.Unix(1, 0)),
			InternalTrafficPolicy: v1alpha1.TrafficPolicyCluster, ExternalTrafficPolicy: v1alpha1.TrafficPolicyLocal,
			ExternalIPs: []string{"198.51.100.20"},
			Ports: []v1alpha1.ServicePort{{Name: "http", Protocol: v1alpha1.ProtocolTCP, Port: 80, Endpoints: []v1alpha1.EndpointGroup{
				{State: v1alpha1.EndpointReady, Zones: []string{"a"}, Addresses: []string{"10.244.1.2:8080"}},
				{State: v1alpha1.EndpointReady, Zones: []string{"b"}, Addresses: []string{"10.244.2.2:8080"}},
				{State: v1alpha1.EndpointTerminating, Addresses: []string{"10.244.1.3:8080"}},
			}}},
		},
	}
	r, err := Of(node, &cluster.Objects{ServiceRules: []v1alpha1.ServiceProxyRules{object}, Time: time.Unix(100, 0)}, &dataplane.ServiceName{Namespace: "shop", Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := r.Table(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"10.244.1.2:8080 Ready yes yes yes",
		`10.244.2.2:8080 Ready no no: hinted for zone b, but the node is in "a" no: it is on another node`,
		"10.244.1.3:8080 Terminating yes no: it is terminating, and others are ready no: it is terminating, and others on this node are ready",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// TestUnused: an object without effect is named with the reason, and a Service without ports
// is explained.
func TestUnused(t *testing.T) {
	t.Parallel()
	node := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	node.Spec.FormatVersion, node.Spec.Settings = 1, *v1alpha1.CompleteSettings(nil)
	object := func(name string, clusterIPs []string, ports ...v1alpha1.ServicePort) v1alpha1.ServiceProxyRules {
		return v1alpha1.ServiceProxyRules{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.ServiceProxyRulesSpec{FormatVersion: 1, ClusterIPs: clusterIPs, Ports: ports},
		}
	}
	web := v1alpha1.ServicePort{Name: "http", Protocol: v1alpha1.ProtocolTCP, Port: 80}
	services := []v1alpha1.ServiceProxyRules{
		object("shop.web", []string{"10.96.0.20"}, web), object("shop.six", []string{"fd00:96::20"}, web),
		object("shop.none", nil, web), object("shop.nonsense", []string{"nonsense"}, web), object("shop.portless", []string{"10.96.0.21"}),
	}
	const none = "its object has no cluster IP, so nodes do not program it"
	for _, tt := range []struct {
		only *dataplane.ServiceName
		want map[string]string // why, by name
	}{
		{nil, map[string]string{"shop.none": none, "shop.nonsense": none + `: spec.clusterIPs[0]: "nonsense"`}},
		{&dataplane.ServiceName{Namespace: "shop", Name: "none"}, map[string]string{"shop.none": none}},
		{&dataplane.ServiceName{Namespace: "shop", Name: "web"}, nil},
	} {
		r, err := Of(node, &cluster.Objects{ServiceRules: services, Time: time.Unix(100, 0)}, tt.only)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.UnusedObjects) != len(tt.want) {
			t.Errorf("of %v unused are %v", tt.only, r.UnusedObjects)
		}
		for _, u := range r.UnusedObjects {
			if want := tt.want[u.Name]; want == "" || !strings.HasPrefix(u.Message, want) {
				t.Errorf("%s: %q", u.Name, u.Message)
			}
		}
		var out strings.Builder
		if err := r.Table(&out); err != nil {
			t.Fatal(err)
		}
		if explained := strings.Contains(out.String(), "its object has no usable port, so it is not served"); explained != (tt.only == nil) {
			t.Errorf("of %v:\n%s", tt.only, out.String())
		}
	}
}

// TestReported: counts are a difference once the node must have reported them.
func TestReported(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		rendered time.Duration // ago
		knows    int32
		want     string
		differs  bool
	}{
		"a change that may be reported later": {rendered: time.Minute, knows: 1, want: "101 desired, 100 reported; agents may report such counts five minutes late"},
		"an old change":                       {rendered: time.Hour, knows: 1, want: "nothing newer than 100", differs: true},
		"old counts":                          {rendered: time.Hour, knows: 1, want: "REPORTED\na change that was rendered more than ten minutes ago is not applied on the node: ServiceProxyRules shop.web have resourceVersion 101, but its kernel has nothing newer than 100\nServices: 1 desired, 0 reported\n", differs: true},
		"an agent that is too old":            {rendered: time.Minute, want: "the agent v0.1.0 of node node-1 is too old for its NodeProxyRules", differs: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := &v1alpha1.NodeProxyRules{
				ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
				Spec:       v1alpha1.NodeProxyRulesSpec{FormatVersion: 1, Settings: *v1alpha1.CompleteSettings(nil)},
				Status: v1alpha1.NodeProxyRulesStatus{
					AppliedResourceVersion: "100", Mode: v1alpha1.ModeIPTables, Families: []string{"IPv4"},
					Agent:      &v1alpha1.AgentReport{Version: "v0.1.0", FormatVersions: []int32{tt.knows}},
					Conditions: []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue}},
				},
			}
			d, err := Reported(node, &cluster.Objects{Time: now, ServiceRules: []v1alpha1.ServiceProxyRules{{
				ObjectMeta: metav1.ObjectMeta{
					Name: "shop.web", ResourceVersion: "101",
					Annotations: map[string]string{v1alpha1.AnnotationWritten: now.Add(-tt.rendered).Format(time.RFC3339)},
				},
				Spec: v1alpha1.ServiceProxyRulesSpec{
					FormatVersion: 1, ClusterIPs: []string{"10.96.0.20"}, InternalTrafficPolicy: v1alpha1.TrafficPolicyCluster, ExternalTrafficPolicy: v1alpha1.TrafficPolicyCluster,
					Ports: []v1alpha1.ServicePort{{Protocol: v1alpha1.ProtocolTCP, Port: 80}},
				},
			}}})
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if err := d.Table(&out); err != nil {
				t.Fatal(err)
			}
			if d.Equal == tt.differs || !strings.Contains(out.String(), tt.want) {
				t.Errorf("differs: %t, want %t, and %q in\n%s", !d.Equal, tt.differs, tt.want, out.String())
			}
		})
	}
}

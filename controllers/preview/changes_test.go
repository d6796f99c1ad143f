package preview_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/preview"
)

// differences are those that are printed, and their summary.
func differences(t testing.TB, o *preview.Objects) (text, summary string) {
	t.Helper()
	changes := preview.Compare(o, preview.Render(o))
	var b strings.Builder
	if err := changes.Write(&b); err != nil {
		t.Fatal(err)
	}
	if (len(changes) > 0) != (b.String() != "") {
		t.Errorf("a change: %t, but printed is %q", len(changes) > 0, b.String())
	}
	return b.String(), changes.Summary()
}

func TestNoDifference(t *testing.T) {
	o := stored(t, []string{cluster, edge, closed}, cluster, edge, closed)
	// None of this is the controllers' to decide about.
	for i := range o.NodeRules {
		o.NodeRules[i].Annotations = map[string]string{v1alpha1.AnnotationRollout: "{}"}
		o.NodeRules[i].ResourceVersion = "7"
		o.NodeRules[i].Status.Services = 7
	}
	for i := range o.ServiceRules {
		o.ServiceRules[i].Annotations = map[string]string{v1alpha1.AnnotationLastChangeTriggerTime: "2026-11-01T08:00:00Z"}
		o.ServiceRules[i].Labels = map[string]string{"unmanaged": "true"}
		o.ServiceRules[i].Spec.ExternalIPs = []string{} // none, otherwise put
	}
	if text, summary := differences(t, o); text != "" || summary != "0 NodeProxyRules and 0 ServiceProxyRules would change" {
		t.Errorf("%s:\n%s", summary, text)
	}
}

func TestDifference(t *testing.T) {
	o := stored(t, []string{cluster, edge, closed}, strings.NewReplacer("name: n3}", "name: n4}", "metadata: {name: pay,", "metadata: {name: cash,").Replace(cluster), edge)
	text, summary := differences(t, o)
	// The rules of n3 remain, draining, so they change.
	if want := "1 NodeProxyRules and 1 ServiceProxyRules would change, 1 NodeProxyRules and 1 ServiceProxyRules would be created, 0 NodeProxyRules and 1 ServiceProxyRules would be removed"; summary != want {
		t.Errorf("got  %s\nwant %s", summary, want)
	}
	want := `--- stored/ServiceProxyRules/shop.cart
+++ rendered/ServiceProxyRules/shop.cart
@@ -13,11 +13,9 @@
     targetPorts:
       http: 8080
   formatVersion: 2
-  policies:
-  - closed
-  policySummary: closed
-  portSummary: 80/TCP
+  portSummary: 80:30080/TCP
   ports:
   - name: http
+    nodePort: 30080
     port: 80
     protocol: TCP
`
	got := text[max(0, strings.Index(text, "--- stored/ServiceProxyRules/shop.cart")):]
	got, _, _ = strings.Cut(got, "--- /dev/null")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, line := range []string{
		"--- stored/NodeProxyRules/n3\n+++ rendered/NodeProxyRules/n3\n", "\n+    draining: true\n",
		"--- /dev/null\n+++ rendered/NodeProxyRules/n4\n@@ -0,0 +1,", "--- /dev/null\n+++ rendered/ServiceProxyRules/shop.cash\n",
		"--- stored/ServiceProxyRules/shop.pay\n+++ /dev/null\n@@ -1,", "\n-  clusterIPs:\n-  - 10.96.0.2\n",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("%q is missing in\n%s", line, text)
		}
	}
}

// What is printed is in the same order whatever that of the objects is.
func TestOrder(t *testing.T) {
	documents := strings.Split(cluster, "\n---\n")
	reversed := make([]string, len(documents))
	for i, d := range documents {
		reversed[len(documents)-1-i] = d
	}
	policies := []string{edge, strings.Replace(edge, "name: edge", "name: alias", 1), closed}
	a := printed(t, preview.Render(read(t, append(documents, policies...)...)))
	b := printed(t, preview.Render(read(t, append(policies, reversed...)...)))
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// crowd is a cluster of the size that this is for, with policies of both kinds in equal
// parts.
func crowd(nodes, services, policies int) *preview.Objects {
	o := &preview.Objects{NodeProxy: &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}}
	node := func(i int) string { return fmt.Sprintf("node-%04d", i%nodes) }
	for i := range nodes {
		o.Nodes = append(o.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node(i), Labels: map[string]string{"pool": fmt.Sprint(i % 20)}}})
	}
	port, portName := int32(8080), ""
	for i := range services {
		namespace, name := fmt.Sprintf("ns-%d", i%50), fmt.Sprintf("service-%d", i)
		o.Services = append(o.Services, corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": fmt.Sprint(i % 200)}},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: fmt.Sprintf("10.96.%d.%d", i/250, i%250),
				Ports: []corev1.ServicePort{{Port: 80, NodePort: 30000}}},
		})
		slice := discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
		}
		for e := range 10 {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 100+i/250, i%250, e+1)}, NodeName: new(node(i*7 + e*101)),
			})
		}
		o.Slices = append(o.Slices, slice)
	}
	for i := range 50 {
		name := fmt.Sprintf("ns-%d", i)
		o.Namespaces = append(o.Namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": fmt.Sprint(i % 10)}}})
	}
	one := func(key string, i int) v1alpha1.LabelSelector {
		return v1alpha1.LabelSelector{MatchLabels: map[string]string{key: fmt.Sprint(i)}}
	}
	for i := range policies / 2 {
		perCore, priority := int32(1000+i), int32(i)
		o.NodePolicies = append(o.NodePolicies, v1alpha1.NodeProxyPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("policy-%d", i)},
			Spec: v1alpha1.NodeProxyPolicySpec{Priority: &priority, NodeSelector: one("pool", i%25),
				Settings: v1alpha1.WrittenSettings{Conntrack: &v1alpha1.ConntrackSettings{MaxPerCore: &perCore}}},
		})
		disabled := v1alpha1.Disabled
		o.ServicePolicies = append(o.ServicePolicies, v1alpha1.ServiceProxyPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("policy-%d", i)},
			Spec: v1alpha1.ServiceProxyPolicySpec{Priority: &priority, NamespaceSelector: one("team", i%10), ServiceSelector: one("app", i%200),
				Overrides: v1alpha1.ServiceOverrides{NodePorts: &disabled}},
		})
	}
	return o
}

func BenchmarkPreview(b *testing.B) {
	o := crowd(1000, 5000, 100)
	r := preview.Render(o)
	o.NodeRules, o.ServiceRules = r.Nodes, r.Services
	*o.NodeProxy = v1alpha1.NodeProxy{Spec: v1alpha1.NodeProxySpec{Settings: &v1alpha1.WrittenSettings{Mode: new(v1alpha1.ModeIPVS)}}} // every node changes
	b.Run("render", func(b *testing.B) {
		for b.Loop() {
			preview.Render(o)
		}
	})
	r = preview.Render(o)
	b.Run("print", func(b *testing.B) {
		for b.Loop() {
			printed(b, r)
		}
	})
	b.Run("differences", func(b *testing.B) {
		for b.Loop() {
			if _, summary := differences(b, o); summary != "1000 NodeProxyRules and 0 ServiceProxyRules would change" {
				b.Fatal(summary)
			}
		}
	})
}

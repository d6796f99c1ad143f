package doctor

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/tracer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// now is when the objects are read.
func now() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now().Add(-d)) }

// written is the annotation of an object that was written so long ago.
func written(d time.Duration) map[string]string {
	return map[string]string{v1alpha1.AnnotationWritten: ago(d).UTC().Format(time.RFC3339)}
}

// world is a healthy cluster of two nodes: CoreDNS on both nodes and the
// Service shop/web of every type of address, with a pod on each node.
type world struct{ *cluster.Objects }

func newWorld() *world {
	w := &world{&cluster.Objects{Time: now(), Docs: "v0.1.0"}}
	w.Namespaces = []corev1.Namespace{
		{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", Labels: map[string]string{corev1.LabelMetadataName: "kube-system"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{corev1.LabelMetadataName: "shop"}}},
	}
	w.addService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns", Labels: map[string]string{"k8s-app": "kube-dns"}, CreationTimestamp: ago(48 * time.Hour)},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Selector: map[string]string{"k8s-app": "kube-dns"},
			Ports: []corev1.ServicePort{
				{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(53)},
				{Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(53)},
			},
		},
	}, "10.244.1.2", "10.244.2.2")
	w.addService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Labels: map[string]string{"app": "web"}, CreationTimestamp: ago(24 * time.Hour)},
		Spec: corev1.ServiceSpec{
			Type:      corev1.ServiceTypeLoadBalancer,
			ClusterIP: "10.96.0.20", ClusterIPs: []string{"10.96.0.20"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			ExternalIPs: []string{"198.51.100.20"},
			Selector:    map[string]string{"app": "web"},
			Ports:       []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("http"), NodePort: 30080}},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "203.0.113.10"}}}},
	}, "10.244.1.5", "10.244.2.5")
	w.NodeProxy = &v1alpha1.NodeProxy{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName, Generation: 1, ResourceVersion: "1"},
		Status: v1alpha1.NodeProxyStatus{
			ObservedGeneration: 1,
			Conditions:         []metav1.Condition{is(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonAllProgrammed, "")},
		},
	}
	w.addNode("node-1", "172.20.0.11")
	w.addNode("node-2", "172.20.0.12")
	w.render()
	return w
}

func is(what string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: what, Status: status, Reason: reason, Message: message, LastTransitionTime: ago(3 * time.Minute)}
}

func (w *world) addNode(name, address string) {
	w.NodeRules = append(w.NodeRules, v1alpha1.NodeProxyRules{
		ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1, ResourceVersion: "1"},
		Spec: v1alpha1.NodeProxyRulesSpec{
			FormatVersion: 1, SettingsRevision: "r", Settings: *v1alpha1.CompleteSettings(nil),
			Node: v1alpha1.NodeFacts{Addresses: []string{address}},
		},
		Status: v1alpha1.NodeProxyRulesStatus{
			ObservedGeneration: 1, SettingsRevision: "r", Mode: v1alpha1.ModeIPTables, Families: []string{"IPv4", "IPv6"},
			Conditions: []metav1.Condition{
				is(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, ""),
				is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "The desired state is programmed."),
			},
			Conntrack: &v1alpha1.ConntrackReport{Entries: 10, Max: 1000, UsagePercent: 1},
			Agent:     &v1alpha1.AgentReport{Version: "v0.1.0", FormatVersions: []int32{1}},
		},
	})
}

// addService adds a Service with a pod on each node.
func (w *world) addService(svc *corev1.Service, addresses ...string) {
	slice := discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: svc.Namespace, Name: svc.Name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, p := range svc.Spec.Ports {
		number := int32(8080)
		if p.TargetPort.Type == intstr.Int {
			number = p.TargetPort.IntVal
		}
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &number, Protocol: &p.Protocol})
	}
	for i, address := range addresses {
		node := []string{"node-1", "node-2"}[i]
		ready := true
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{address}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
		w.Pods = append(w.Pods, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name + "-" + node, Labels: svc.Spec.Selector},
			Spec:       corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{
				Phase: corev1.PodRunning, PodIP: address,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			},
		})
	}
	w.Services = append(w.Services, *svc)
	w.EndpointSlices = append(w.EndpointSlices, slice)
}

// render writes the objects that the controller renders.
func (w *world) render() {
	w.ServiceRules = nil
	var valid []policies.ServicePolicy
	for i := range w.ServicePolicies {
		if p, errs := policies.ServicePolicyOf(&w.ServicePolicies[i]); len(errs) == 0 {
			valid = append(valid, p)
		}
	}
	shapes := policies.NewServices(valid)
	var of []render.ServiceSlices
	var names []string
	for i := range w.Services {
		svc := &w.Services[i]
		var all []*discoveryv1.EndpointSlice
		for j := range w.EndpointSlices {
			if s := &w.EndpointSlices[j]; s.Namespace == svc.Namespace && s.Labels[discoveryv1.LabelServiceName] == svc.Name {
				all = append(all, s)
			}
		}
		of = append(of, render.ServiceSlices{Service: named(svc), Slices: all})
		if !render.Eligible(svc) {
			continue
		}
		r := shapes.Resolve(map[string]string{corev1.LabelMetadataName: svc.Namespace}, svc.Labels)
		rules, _ := render.Service(svc, all, render.Shape{Overrides: &r.Overrides, Policies: r.Policies}, w.surroundings(), 1)
		rules.ResourceVersion = "7"
		w.ServiceRules = append(w.ServiceRules, *rules)
		names = append(names, rules.Name)
	}
	for i := range w.NodeRules {
		w.NodeRules[i].Spec.LocalEndpoints = render.LocalEndpoints(w.NodeRules[i].Name, of, nil).Services
		w.report(i)
	}
	if w.NodeProxy != nil {
		inventory := render.Inventory(names)
		w.NodeProxy.Status.Inventory = &inventory
	}
}

// surroundings are the addresses that the controller knows.
func (w *world) surroundings() render.Cluster {
	return render.Cluster{
		Ranges: render.NewServiceRanges([]string{"10.96.0.0/16"}),
		OfNode: func(a netip.Addr) bool {
			return slices.ContainsFunc(w.NodeRules, func(n v1alpha1.NodeProxyRules) bool {
				return slices.Contains(n.Spec.Node.Addresses, a.String())
			})
		},
	}
}

// report writes the counts of the agent of a node that has programmed everything.
func (w *world) report(i int) {
	node, local := w.node(i), map[netip.AddrPort]bool{}
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		set, err := combine.Whole(node, w.ServiceRules, family)
		if err != nil {
			continue // a fault that was planted
		}
		for _, svc := range set.Services {
			for _, port := range svc.Ports {
				for _, endpoint := range slices.Concat(port.Cluster, port.Local) {
					if slices.Contains(port.LocalEndpoints, endpoint) {
						local[endpoint] = true
					}
				}
			}
		}
	}
	node.Status.LocalEndpoints, node.Status.AppliedResourceVersion = int32(len(local)), "7"
}

func (w *world) service(name string) *corev1.Service {
	return &w.Services[slices.IndexFunc(w.Services, func(s corev1.Service) bool { return s.Name == name })]
}

func (w *world) slice(of string) *discoveryv1.EndpointSlice {
	return &w.EndpointSlices[slices.IndexFunc(w.EndpointSlices, func(s discoveryv1.EndpointSlice) bool {
		return s.Labels[discoveryv1.LabelServiceName] == of
	})]
}

func (w *world) node(i int) *v1alpha1.NodeProxyRules { return &w.NodeRules[i] }

// set sets a condition of a node.
func (w *world) set(i int, c metav1.Condition) {
	all := &w.node(i).Status.Conditions
	*all = slices.DeleteFunc(*all, func(old metav1.Condition) bool { return old.Type == c.Type })
	*all = append(*all, c)
}

func (w *world) removePods(service string) {
	w.Pods = slices.DeleteFunc(w.Pods, func(p corev1.Pod) bool { return strings.HasPrefix(p.Name, service+"-") })
	w.slice(service).Endpoints = nil
}

// again reads the same objects a second time.
func (w *world) again(time.Duration) (*cluster.Objects, error) { return w.Objects, nil }

func (w *world) question(t *testing.T) Question {
	return Question{Again: w.again, Trace: func(set *combine.Set, packet tracer.Packet) (*tracer.Result, error) {
		return tracer.New(set).Trace(t.Context(), packet)
	}}
}

func (w *world) examine(t *testing.T, service string) *Report {
	t.Helper()
	q := w.question(t)
	if service != "" {
		namespace, name, _ := strings.Cut(service, "/")
		q.Service = &types.NamespacedName{Namespace: namespace, Name: name}
	}
	report, err := Examine(w.Objects, q)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// names are the reasons of findings, each followed by its consequences in brackets.
func names(found []findings.Finding) string {
	var out []string
	for _, f := range found {
		text := f.Reason
		if len(f.Consequences) > 0 {
			text += "(" + names(f.Consequences) + ")"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func printed(t *testing.T, r *Report) string {
	t.Helper()
	out := &strings.Builder{}
	if err := r.Table(out); err != nil {
		t.Fatal(err)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

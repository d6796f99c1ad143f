package doctor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/tracer"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// large is a healthy cluster with many nodes, and Services of six pods each in a hundred
// namespaces.
func large(nodes, services int) *world {
	w := newWorld()
	w.Services, w.EndpointSlices, w.Pods, w.NodeRules = w.Services[:1], w.EndpointSlices[:1], w.Pods[:2], nil
	for i := range nodes {
		w.addNode(fmt.Sprintf("node-%d", i+1), fmt.Sprintf("172.20.%d.%d", i/250, 1+i%250))
	}
	for i := range services {
		name := fmt.Sprintf("web-%d", i)
		ip := fmt.Sprintf("10.97.%d.%d", i/250, 1+i%250)
		w.addService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("shop-%d", i%100), Name: name, CreationTimestamp: ago(time.Hour)},
			Spec: corev1.ServiceSpec{
				ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Selector: map[string]string{"app": name},
				Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolTCP}},
			},
		})
		slice := &w.EndpointSlices[len(w.EndpointSlices)-1]
		for j := range 6 {
			pod := 6*i + j
			node, address := fmt.Sprintf("node-%d", 1+pod%nodes), fmt.Sprintf("10.%d.%d.%d", 128+pod/62500, pod/250%250, 1+pod%250)
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
			w.Pods = append(w.Pods, corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: slice.Namespace, Name: fmt.Sprintf("%s-%d", name, j), Labels: map[string]string{"app": name}},
				Spec:       corev1.PodSpec{NodeName: node},
				Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
			})
		}
	}
	w.renderLarge()
	return w
}

// renderLarge is render for Services that are in the order of their slices, in linear time.
func (w *world) renderLarge() {
	w.ServiceRules = nil
	on := map[string][]render.ServiceSlices{}
	var names []string
	for i := range w.Services {
		slices := []*discoveryv1.EndpointSlice{&w.EndpointSlices[i]}
		for _, node := range render.NodesNamed(slices[0]) {
			on[node] = append(on[node], render.ServiceSlices{Service: named(&w.Services[i]), Slices: slices})
		}
		rules, _ := render.Service(&w.Services[i], slices, render.Shape{}, render.Cluster{}, 1)
		w.ServiceRules = append(w.ServiceRules, *rules)
		names = append(names, rules.Name)
	}
	for i := range w.NodeRules {
		node := &w.NodeRules[i]
		node.Spec.LocalEndpoints = render.LocalEndpoints(node.Name, on[node.Name], nil).Services
		node.Status.LocalEndpoints = 0 // each has one port, whose endpoints are all used
		for _, localEndpoints := range node.Spec.LocalEndpoints {
			node.Status.LocalEndpoints += int32(len(localEndpoints.Ports[0].Endpoints))
		}
	}
	inventory := render.Inventory(names)
	w.NodeProxy.Status.Inventory = &inventory
}

// TestSize: a large cluster is examined in seconds, without copies of its objects.
func TestSize(t *testing.T) {
	const nodes, services = 1000, 5000
	w := large(nodes, services)
	var found []findings.Finding
	once := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			found = w.examine(t, "").Findings
		}
	})
	t.Logf("%d nodes, %d Services, %d pods: %s, %d MiB allocated", nodes, services, len(w.Pods), time.Duration(once.NsPerOp()), once.AllocedBytesPerOp()>>20)
	if len(found) > 0 {
		t.Fatalf("found %s", names(found))
	}
	if once.NsPerOp() > int64(time.Minute) || once.AllocedBytesPerOp() > 2<<30 {
		t.Errorf("took %s", once)
	}
}

// TestSizeOfOne: only a few endpoints of a large Service are traced.
func TestSizeOfOne(t *testing.T) {
	const nodes, endpoints = 100, 500
	w := large(nodes, 1)
	slice := &w.EndpointSlices[1]
	for i := len(slice.Endpoints); i < endpoints; i++ {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.200.%d.%d", i/250, 1+i%250)}, NodeName: new(fmt.Sprintf("node-%d", 1+i%nodes)), Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	w.renderLarge()
	q := w.question(t)
	q.Service = &types.NamespacedName{Namespace: "shop-0", Name: "web-0"}
	traced, trace := 0, q.Trace
	q.Trace = func(set *combine.Set, p tracer.Packet) (*tracer.Result, error) {
		traced++
		return trace(set, p)
	}
	r, err := Examine(w.Objects, q)
	if err != nil || traced != maxTracedEndpoints || len(r.Findings) > 0 || !strings.Contains(printed(t, r), "was checked for 20 of its endpoints") {
		t.Errorf("%v, %d traced:\n%s", err, traced, printed(t, r))
	}
}

package controllers_test

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// switchOn creates the NodeProxy.
func switchOn(ctx context.Context) *v1alpha1.NodeProxy {
	GinkgoHelper()
	np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
	Expect(k8s.Create(ctx, np)).To(Succeed())
	return np
}

// createService creates a ClusterIP Service with the port http, changed by edit.
func createService(ctx context.Context, namespace, name string, edit ...func(*corev1.Service)) *corev1.Service {
	GinkgoHelper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
	for _, e := range edit {
		e(svc)
	}
	Expect(k8s.Create(ctx, svc)).To(Succeed())
	return svc
}

// at is a ready endpoint on a node; no node when empty.
func at(address, node string) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{address}}
	if node != "" {
		e.NodeName = &node
	}
	return e
}

// in changes the conditions of an endpoint.
func in(e discoveryv1.Endpoint, ready, serving, terminating bool) discoveryv1.Endpoint {
	e.Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
	return e
}

// createSlice creates an EndpointSlice of a Service with the port http at 8080.
func createSlice(ctx context.Context, namespace, service, name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	GinkgoHelper()
	port, portName := int32(8080), "http"
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
		Endpoints:   endpoints,
	}
	Expect(k8s.Create(ctx, slice)).To(Succeed())
	return slice
}

// setEndpoints replaces the endpoints of a slice.
func setEndpoints(ctx context.Context, slice *discoveryv1.EndpointSlice, endpoints ...discoveryv1.Endpoint) {
	GinkgoHelper()
	slice.Endpoints = endpoints
	Expect(k8s.Update(ctx, slice)).To(Succeed())
}

// createNode creates a Linux Node with an InternalIP, changed by edit.
func createNode(ctx context.Context, name string, edit ...func(*corev1.Node)) *corev1.Node {
	GinkgoHelper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}},
	}
	for _, e := range edit {
		e(node)
	}
	status := node.Status
	Expect(k8s.Create(ctx, node)).To(Succeed())
	node.Status = status
	Expect(k8s.Status().Update(ctx, node)).To(Succeed())
	return node
}

// rulesOf reads the ServiceProxyRules of a Service; for Eventually.
func rulesOf(ctx context.Context, namespace, name string) func() (*v1alpha1.ServiceProxyRules, error) {
	return func() (*v1alpha1.ServiceProxyRules, error) {
		rules := &v1alpha1.ServiceProxyRules{}
		err := k8s.Get(ctx, client.ObjectKey{Name: v1alpha1.ServiceProxyRulesName(namespace, name)}, rules)
		return rules, err
	}
}

// nodeRules reads the NodeProxyRules of a node; for Eventually.
func nodeRules(ctx context.Context, name string) func() (*v1alpha1.NodeProxyRules, error) {
	return func() (*v1alpha1.NodeProxyRules, error) {
		rules := &v1alpha1.NodeProxyRules{}
		err := k8s.Get(ctx, client.ObjectKey{Name: name}, rules)
		return rules, err
	}
}

// summary reads the status of NodeProxy; for Eventually.
func summary(ctx context.Context) func() (v1alpha1.NodeProxyStatus, error) {
	return func() (v1alpha1.NodeProxyStatus, error) {
		np := &v1alpha1.NodeProxy{}
		err := k8s.Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, np)
		return np.Status, err
	}
}

// ready returns "status reason: message" of the condition Ready.
func ready(status v1alpha1.NodeProxyStatus) string {
	for _, c := range status.Conditions {
		if c.Type == v1alpha1.ConditionReady {
			return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return ""
}

// addresses returns every endpoint of the first port as "state address".
func addresses(rules *v1alpha1.ServiceProxyRules) []string {
	var out []string
	if len(rules.Spec.Ports) == 0 {
		return nil
	}
	for _, g := range rules.Spec.EndpointsOf(&rules.Spec.Ports[0]) {
		for a := range g.All() {
			out = append(out, string(g.Effective())+" "+a)
		}
	}
	return out
}

// localEndpoints returns every local endpoint of a node as "namespace/name address".
func localEndpoints(rules *v1alpha1.NodeProxyRules) []string {
	var out []string
	for _, s := range rules.Spec.LocalEndpoints {
		for _, p := range s.Ports {
			for _, a := range p.Endpoints {
				out = append(out, fmt.Sprintf("%s/%s %s", s.Namespace, s.Name, a))
			}
		}
	}
	return out
}

// eventsOf returns the events of a reason about a Service.
func eventsOf(ctx context.Context, svc *corev1.Service, reason string) func() ([]eventsv1.Event, error) {
	return func() ([]eventsv1.Event, error) {
		var list eventsv1.EventList
		err := k8s.List(ctx, &list, client.InNamespace(svc.Namespace))
		var out []eventsv1.Event
		for _, e := range list.Items {
			if e.Reason == reason && e.Regarding.Name == svc.Name {
				out = append(out, e)
			}
		}
		return out, err
	}
}

// versions returns name → resourceVersion of every rendered object.
func versions(ctx context.Context) map[string]string {
	GinkgoHelper()
	out := map[string]string{}
	var services v1alpha1.ServiceProxyRulesList
	Expect(k8s.List(ctx, &services)).To(Succeed())
	for i := range services.Items {
		out["service "+services.Items[i].Name] = services.Items[i].ResourceVersion
	}
	var nodes v1alpha1.NodeProxyRulesList
	Expect(k8s.List(ctx, &nodes)).To(Succeed())
	for i := range nodes.Items {
		out["node "+nodes.Items[i].Name] = nodes.Items[i].ResourceVersion
	}
	return out
}

// touch changes a Service in a way that changes nothing that is rendered.
func touch(ctx context.Context, svc *corev1.Service) {
	GinkgoHelper()
	edit(ctx, svc, func() { svc.Labels = map[string]string{"touched": fmt.Sprint(time.Now().UnixNano())} })
}

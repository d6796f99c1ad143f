package doctor

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// endpointFaults are faults of endpoints.
func endpointFaults() map[string]planted {
	fails := func(w *world, node int, more ...v1alpha1.FailingEndpoint) {
		one := v1alpha1.FailingEndpoint{
			Service: "shop/web", Port: "80/TCP", Endpoint: "10.244.1.5:8080", Reason: v1alpha1.EndpointRejects,
			Since: ago(time.Duration(10+node) * time.Minute), Failed: int64(1 + node), Connections: 50,
		}
		w.node(node).Status.Userspace = &v1alpha1.UserspaceReport{Failing: int32(1 + len(more)), Endpoints: append(more, one)}
	}
	return map[string]planted{
		"an endpoint that two agents cannot connect to": {
			plant: func(w *world) { fails(w, 0); fails(w, 1) },
			want:  "EndpointFails", contains: "WARNING EndpointFails of Service shop/web, nodes node-1, node-2 since 2026-03-01T11:49:00Z (11m)\n" +
				"  retried 3 of 100 connections to port 80/TCP: endpoint 10.244.1.5:8080 rejects them\n" +
				"  remedy: see why the pod is ready all the same: kubectl describe pod -n shop web-node-1; see ",
		},
		"two endpoints, of which one is of no pod, and no other one accepts": {
			plant: func(w *world) {
				fails(w, 0, v1alpha1.FailingEndpoint{Service: "shop/web", Port: "80/TCP", Endpoint: "192.0.2.7:8080", Reason: "New", Failed: 3, Connections: 2, Rejected: 1})
			},
			want: "EndpointFails EndpointFails", contains: "PROBLEM EndpointFails of Service shop/web, node node-1\n" +
				"  retried 3 of 3 connections to port 80/TCP: endpoint 192.0.2.7:8080 does not accept them (New); rejected 1, because no other endpoint accepted either\n" +
				"  remedy: see what the endpoint is: kubectl get endpointslices -n shop -l kubernetes.io/service-name=web",
		},
		"more endpoints than the status names": {
			plant: func(w *world) {
				fails(w, 0)
				w.node(0).Status.Userspace.Failing = 12
			},
			want: "EndpointFails", contains: "node-1 does not name 11 more endpoints that do not accept connections of its agent",
		},
		"an endpoint of another Service": {
			service: "kube-system/kube-dns",
			plant:   func(w *world) { fails(w, 0) },
		},
		"selector without pods": {
			plant: func(w *world) {
				w.service("web").Spec.Selector = map[string]string{"app": "wbe"}
				w.slice("web").Endpoints = nil
				w.render()
			},
			want: "NoPodMatches", contains: "app=wbe",
		},
		"no selector and no slices": {
			plant: func(w *world) {
				w.service("web").Spec.Selector = nil
				w.EndpointSlices = w.EndpointSlices[:1]
				w.render()
			},
			want: "NoEndpointSlices", contains: "kubernetes.io/service-name=web",
		},
		"pods and no slices": {
			plant: func(w *world) { w.EndpointSlices = w.EndpointSlices[:1]; w.render() },
			want:  "EndpointSlicesMissing", contains: "2 pods",
		},
		"no pod is ready": {
			plant: func(w *world) {
				for i := range w.slice("web").Endpoints {
					w.slice("web").Endpoints[i].Conditions.Ready = new(false)
					w.Pods[2+i].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: "containers with unready status: [web]"}}
				}
				w.render()
			},
			want: "NoReadyEndpoint", contains: "pod web-node-1: containers with unready status: [web] (and 1 more)",
		},
		"no endpoint is ready, and one pod is not": {
			plant: func(w *world) {
				for i := range w.slice("web").Endpoints {
					w.slice("web").Endpoints[i].Conditions.Ready = new(false)
				}
				w.Pods[3].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: "a gate"}}
				w.render()
			},
			want: "NoReadyEndpoint", contains: "pod web-node-2: a gate\n",
		},
		"no endpoint is ready, and nothing is selected": {
			plant: func(w *world) {
				w.service("web").Spec.Selector = nil
				for i := range w.slice("web").Endpoints {
					w.slice("web").Endpoints[i].Conditions.Ready = new(false)
				}
				w.render()
			},
			want: "NoReadyEndpoint", contains: "see why: kubectl get endpointslices -n shop -l kubernetes.io/service-name=web -o yaml",
		},
		"no pod starts": {
			plant: func(w *world) {
				w.slice("web").Endpoints = nil
				for i := range 2 {
					w.Pods[2+i].Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{
						{Name: "web", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}},
					}}
				}
				w.render()
			},
			want: "NoReadyEndpoint", contains: "container web: ImagePullBackOff",
		},
		"pods that terminate": {
			plant: func(w *world) {
				for i := range w.slice("web").Endpoints {
					w.slice("web").Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
				}
				w.render()
			},
			want: "OnlyTerminating",
		},
		"targetPort of no pod": {
			plant: func(w *world) {
				w.service("web").Spec.Ports[0].TargetPort = intstr.FromString("htpp")
				w.slice("web").Ports = nil
				w.render()
			},
			want: "PortWithoutEndpoint", contains: `no selected pod has a port named "htpp", its targetPort`,
		},
		"number of a port that slices do not have yet": {
			plant: func(w *world) {
				w.service("web").Spec.Ports = append(w.service("web").Spec.Ports, corev1.ServicePort{Name: "admin", Port: 81, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8081)})
				w.render()
			},
			want: "PortWithoutEndpoint", contains: "none for port 81/TCP (admin): EndpointSlices lack the port\n  remedy: check kube-controller-manager, which writes",
		},
		"port name of no slice": {
			plant: func(w *world) {
				w.service("web").Spec.Selector = nil
				w.slice("web").Ports[0].Name = new("web")
				w.render()
			},
			want: "PortWithoutEndpoint", contains: "which must match the Service's",
		},
		"no endpoint of a family": {
			plant: func(w *world) {
				s := &w.service("web").Spec
				s.ClusterIPs, s.IPFamilies = append(s.ClusterIPs, "fd00::20"), append(s.IPFamilies, corev1.IPv6Protocol)
				w.render()
			},
			want: "FamilyWithoutEndpoint", contains: "SingleStack, which retains its first family",
		},
		"invalid address": {
			plant: func(w *world) {
				w.slice("web").Endpoints = append(w.slice("web").Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.244.1"}})
				w.render()
			},
			want: "EndpointsSkipped", contains: `"10.244.1"`,
		},
		"no endpoint of the first family": {
			plant: func(w *world) {
				s := &w.service("web").Spec
				s.ClusterIPs, s.IPFamilies = append([]string{"fd00::20"}, s.ClusterIPs...), append([]corev1.IPFamily{corev1.IPv6Protocol}, s.IPFamilies...)
				s.ClusterIP = s.ClusterIPs[0]
				w.render()
			},
			want: "FamilyWithoutEndpoint", contains: "create it again with ipFamilies without IPv6",
		},
	}
}

// renderingFaults are faults of rendered objects.
func renderingFaults() map[string]planted {
	return map[string]planted{
		"Service of another proxy": {
			service: "shop/web",
			plant:   func(w *world) { w.service("web").Labels[render.LabelServiceProxyName] = "other"; w.render() },
			want:    "NotEligible", contains: "kubectl label service -n shop web service.kubernetes.io/service-proxy-name-",
		},
		"not rendered": {
			plant: func(w *world) {
				w.ServiceRules = w.ServiceRules[:1]
				w.report(0)
				w.report(1)
			},
			want: "ControllerBehind(InventoryDiffers NotRendered)",
		},
		"rendered before a change": {
			plant: func(w *world) { w.service("web").Spec.Ports[0].Port = 81 },
			want:  "ControllerBehind(RenderedOutdated)", contains: "(changed: ports)",
		},
		"rules of a Service that is gone": {
			plant: func(w *world) { w.Services = w.Services[:1] },
			want:  "ControllerBehind(StillRendered)",
		},
		"outdated local endpoints": {
			plant: func(w *world) {
				w.node(1).Spec.LocalEndpoints = nil
				w.report(1)
			},
			want: "ControllerBehind(LocalEndpointsOutdated)",
		},
		"local endpoints left out": {
			plant: crowd,
			want:  "LocalEndpointsLeftOut", contains: "more than the limit of 131072 for one namespace on one node",
		},
		"local endpoints of another Service left out": {service: "shop/web", plant: crowd},
	}
}

// crowd adds a Service with more endpoints on node-1 than fit into its NodeProxyRules.
func crowd(w *world) {
	slice := w.slice("web").DeepCopy()
	slice.Namespace, slice.Name, slice.Labels = "evil", "crowd", map[string]string{discoveryv1.LabelServiceName: "crowd"}
	one, port := slice.Endpoints[0], slice.Ports[0]
	slice.Endpoints, slice.Ports = nil, nil
	for i := range 240 {
		e := *one.DeepCopy()
		e.Addresses = []string{fmt.Sprintf("10.250.%d.%d", i/250, 1+i%250)}
		slice.Endpoints = append(slice.Endpoints, e)
	}
	for i := range 100 {
		p := *port.DeepCopy()
		p.Name, p.Port = new(fmt.Sprintf("p%d", i)), new(int32(8000+i))
		slice.Ports = append(slice.Ports, p)
	}
	w.EndpointSlices = append(w.EndpointSlices, *slice)
}

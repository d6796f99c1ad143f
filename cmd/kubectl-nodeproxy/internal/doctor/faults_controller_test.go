package doctor

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// controllerFaults are faults of the controller and of NodeProxy.
func controllerFaults() map[string]planted {
	return map[string]planted{
		"no NodeProxy": {
			plant: func(w *world) { w.NodeProxy = nil },
			want:  "NoNodeProxy", contains: "apply your previous NodeProxy",
		},
		"being removed": {
			plant: func(w *world) {
				deleted := ago(time.Minute)
				w.NodeProxy.DeletionTimestamp = &deleted
				w.NodeProxy.Status.Conditions = []metav1.Condition{is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRemoving, "node-2 has not removed its rules")}
				w.ServiceRules = w.ServiceRules[:1]
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonRemoved, "removed"))
			},
			want: "Removing(InventoryDiffers Removed NotRendered)",
		},
		"settings rejected": {
			plant: func(w *world) {
				w.NodeProxy.Status.Conditions = []metav1.Condition{is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonInvalidSettings, "settings.masquerade.bit")}
			},
			want: "InvalidSettings", contains: "settings.masquerade.bit",
		},
		"inventory of other objects": {
			plant: func(w *world) { w.NodeProxy.Status.Inventory.Services = 7 },
			want:  "ControllerBehind(InventoryDiffers)",
		},
		"a generation that no controller has observed": {
			plant: func(w *world) { w.NodeProxy.Generation = 2 },
			want:  "ControllerBehind(NodeProxyNotObserved)", contains: "docs/troubleshooting.md#nodeproxycontrollerwithoutleader",
		},
		"a Service that the controller cannot render": {
			plant: func(w *world) {
				w.NodeProxy.Status.Unrendered = []v1alpha1.UnrenderedService{{Namespace: "shop", Name: "web", Message: "larger than 1 MiB"}}
				w.NodeProxy.Status.UnrenderedServices = 1
				w.ServiceRules = w.ServiceRules[:1]
				w.NodeProxy.Status.Inventory = new(render.Inventory([]string{"kube-system.kube-dns"}))
				w.report(0)
				w.report(1)
			},
			want: "ServiceNotRendered", contains: "larger than 1 MiB",
		},
		"a Service that the controller could not render, and that is gone": {
			plant: func(w *world) {
				w.NodeProxy.Status.Unrendered = []v1alpha1.UnrenderedService{{Namespace: "shop", Name: "gone", Message: "larger than 1 MiB"}}
				w.NodeProxy.Status.UnrenderedServices = 1
			},
		},
		"not enabled": {
			plant: func(w *world) { w.NodeProxy, w.NodeRules, w.ServiceRules = nil, nil, nil },
			want:  "NoNodeProxy", contains: "docs/migration.md#1-install-beside-kube-proxy, else https://github.com/nodeproxy-io/nodeproxy/blob/v0.1.0/docs/install.md#install",
		},
	}
}

// dnsFaults are faults of the cluster's DNS.
func dnsFaults() map[string]planted {
	return map[string]planted{
		"DNS without pods": {
			plant: func(w *world) { w.removePods("kube-dns"); w.render() },
			want:  "NoPodMatches", contains: "names may not resolve",
		},
		"DNS asked for by its name": {
			service: "kube-system/kube-dns",
			plant:   func(w *world) { w.removePods("kube-dns"); w.render() },
			want:    "NoPodMatches",
		},
		"no DNS": {
			plant: func(w *world) {
				w.Services, w.EndpointSlices = w.Services[1:], w.EndpointSlices[1:]
				w.render()
			},
			contains: "(kube-system/kube-dns, or one with the label k8s-app=kube-dns or dns.operator.openshift.io/owning-dns)",
		},
		"DNS of OpenShift without pods": {
			plant: func(w *world) {
				dns := w.service("kube-dns")
				dns.Name, dns.Labels = "dns-default", map[string]string{"dns.operator.openshift.io/owning-dns": "default"}
				w.slice("kube-dns").Labels[discoveryv1.LabelServiceName] = "dns-default"
				w.slice("dns-default").Endpoints = nil
				w.Pods = w.Pods[2:]
				w.render()
			},
			want: "NoPodMatches", contains: "names may not resolve",
		},
		"DNS without TCP": {
			plant: func(w *world) { w.service("kube-dns").Spec.Ports = w.service("kube-dns").Spec.Ports[:1]; w.render() },
			want:  "DNSPortMissing", contains: "53/TCP",
		},
		"a Service for the metrics of DNS": {
			plant: func(w *world) {
				metrics := w.service("kube-dns").DeepCopy()
				metrics.Name, metrics.Spec.ClusterIP, metrics.Spec.ClusterIPs = "coredns-metrics", "10.96.0.11", []string{"10.96.0.11"}
				metrics.Spec.Ports = []corev1.ServicePort{{Name: "metrics", Port: 9153, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(9153)}}
				w.addService(metrics, "10.244.1.2", "10.244.2.2")
				w.render()
			},
		},
		"DNS of another proxy": {
			plant: func(w *world) { w.service("kube-dns").Labels[render.LabelServiceProxyName] = "other"; w.render() },
			want:  "DNSNotProxied",
		},
	}
}

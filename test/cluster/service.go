package cluster

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WithoutSelector returns a Service with port 80 and its EndpointSlice, whose endpoints are
// ready and listen on port 8080. No controller writes such a slice, nor changes it.
func WithoutSelector(namespace, name string, addresses ...string) (*corev1.Service, *discoveryv1.EndpointSlice) {
	at := metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: at, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080))}},
	}
	for _, address := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
	}
	return &corev1.Service{ObjectMeta: at, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, slice
}

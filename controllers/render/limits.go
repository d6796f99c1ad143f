package render

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Size returns the numbers of a Service that are limited, by its objects: this takes no more time
// than to count them.
func Size(svc *corev1.Service, endpointSlices []*discoveryv1.EndpointSlice) v1alpha1.ServiceSize {
	return sizeOfSlices(endpointSlices).Plus(v1alpha1.ServiceSize{
		Ports:           len(svc.Spec.Ports),
		Addresses:       len(svc.Spec.ExternalIPs) + len(svc.Status.LoadBalancer.Ingress),
		LoadBalancerIPs: len(svc.Status.LoadBalancer.Ingress),
		SourceRanges:    len(svc.Spec.LoadBalancerSourceRanges),
	})
}

func sizeOfSlices(endpointSlices []*discoveryv1.EndpointSlice) (size v1alpha1.ServiceSize) {
	for _, slice := range endpointSlices {
		size.Endpoints += len(slice.Endpoints)
		size.PortEndpoints += len(slice.Endpoints) * len(slice.Ports)
	}
	return size
}

// tooMany reports whether slices exceed the limits of one Service.
func tooMany(endpointSlices []*discoveryv1.EndpointSlice) bool {
	limit, _ := sizeOfSlices(endpointSlices).Excess()
	return limit != ""
}

package registry

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Service identifies a Service whose port 80 is served by one port of pods.
type Service struct {
	Namespace, Name string
	UID             types.UID
	TargetPort      int32
}

// Entries returns the Service with its cluster IP, and the record that this is in use, as the API server
// stores them. Without a selector, no controller makes EndpointSlices of it.
func (s *Service) Entries(ip string, selector map[string]string) []Entry {
	return []Entry{
		{"/registry/ipaddresses/" + ip, &networkingv1.IPAddress{
			TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "IPAddress"},
			ObjectMeta: metav1.ObjectMeta{
				Name: ip, UID: "ip-" + s.UID, CreationTimestamp: metav1.Now(),
				Labels: map[string]string{networkingv1.LabelIPAddressFamily: string(corev1.IPv4Protocol), networkingv1.LabelManagedBy: "ipallocator.k8s.io"},
			},
			Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: s.Namespace, Name: s.Name}},
		}},
		{"/registry/services/specs/" + s.Namespace + "/" + s.Name, &corev1.Service{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
			ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: s.UID, CreationTimestamp: metav1.Now()},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
				SessionAffinity: corev1.ServiceAffinityNone, InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
				Selector: selector,
				Ports:    []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(s.TargetPort)}},
			},
		}},
	}
}

// Slice returns an EndpointSlice of the Service with all that the EndpointSlice controller writes for pods of a
// ReplicaSet, and no endpoint. Where the garbage collector runs, it deletes one whose Service does not exist.
func (s *Service) Slice(number int) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: fmt.Sprintf("%s-%05x", s.Name, number), GenerateName: s.Name + "-",
			Labels: map[string]string{
				discoveryv1.LabelServiceName: s.Name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
			},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339)},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Service", Name: s.Name, UID: s.UID, Controller: new(true), BlockOwnerDeletion: new(true),
			}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(s.TargetPort), Protocol: new(corev1.ProtocolTCP)}},
	}
}

// Endpoint returns one of a slice: the Service's ready pod with this number.
func (s *Service) Endpoint(number int, address, node, zone string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses:  []string{address},
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		TargetRef: &corev1.ObjectReference{
			Kind: "Pod", Namespace: s.Namespace, Name: fmt.Sprintf("%s-7d9f8b6c5-%05x", s.Name, number), UID: UID(4, number),
		},
		NodeName: &node, Zone: &zone,
	}
}

// UID returns the same one for the same object: the number-th of a kind, which is one digit.
func UID(kind, number int) types.UID {
	return types.UID(fmt.Sprintf("00000000-0000-4000-800%d-%012d", kind, number))
}

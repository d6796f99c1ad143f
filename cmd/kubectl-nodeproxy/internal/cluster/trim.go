package cluster

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trim drops what no command needs, page by page, because a large cluster has tens of
// thousands of pods: managed fields except their times, and most of the pods' specs.
func trim(object any) {
	if o, err := meta.Accessor(object); err == nil {
		var when []metav1.ManagedFieldsEntry
		for _, m := range o.GetManagedFields() {
			when = append(when, metav1.ManagedFieldsEntry{Time: m.Time, Subresource: m.Subresource})
		}
		o.SetManagedFields(when)
	}
	pod, is := object.(*corev1.Pod)
	if !is {
		return
	}
	pod.ManagedFields, pod.Annotations, pod.OwnerReferences = nil, nil, nil
	s := pod.Spec
	pod.Spec = corev1.PodSpec{NodeName: s.NodeName, HostNetwork: s.HostNetwork, NodeSelector: s.NodeSelector, OS: s.OS}
}

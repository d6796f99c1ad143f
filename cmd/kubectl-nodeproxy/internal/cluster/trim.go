package cluster

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

// trim drops what nothing looks at, page by page, since a large cluster has tens of
// thousands of pods: who wrote which field, and nearly all that pods are to run.
func trim(object any) {
	if o, err := meta.Accessor(object); err == nil {
		o.SetManagedFields(nil)
	}
	pod, is := object.(*corev1.Pod)
	if !is {
		return
	}
	pod.Annotations, pod.OwnerReferences = nil, nil
	s := pod.Spec
	pod.Spec = corev1.PodSpec{NodeName: s.NodeName, HostNetwork: s.HostNetwork, NodeSelector: s.NodeSelector, OS: s.OS}
}

package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTrim(t *testing.T) {
	t.Parallel()
	at := metav1.Unix(1, 0)
	written := []metav1.ManagedFieldsEntry{{Manager: "kubelet", Time: &at, Subresource: "status", FieldsV1: metav1.NewFieldsV1("{}")}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"a": "b"}, ManagedFields: written},
		Spec:       corev1.PodSpec{NodeName: "node-1", HostNetwork: true, Containers: []corev1.Container{{Name: "web", Env: []corev1.EnvVar{{Name: "A"}}}}},
		Status:     corev1.PodStatus{PodIP: "10.244.1.5", ContainerStatuses: []corev1.ContainerStatus{{Name: "web"}}},
	}
	trim(pod)
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "node-1", HostNetwork: true},
		Status:     corev1.PodStatus{PodIP: "10.244.1.5", ContainerStatuses: []corev1.ContainerStatus{{Name: "web"}}},
	}
	if !equality.Semantic.DeepEqual(pod, want) {
		t.Errorf("got %+v, want %+v", pod, want)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{"a": "b"}, ManagedFields: written}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}}
	trim(service)
	if service.ManagedFields != nil || service.Annotations["a"] != "b" || service.Spec.ClusterIP == "" {
		t.Errorf("got %+v", service)
	}
}

package cluster

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// DaemonSets reads the DaemonSets of a namespace.
func (r *Reader) DaemonSets(ctx context.Context, namespace string) ([]appsv1.DaemonSet, error) {
	return listOf(ctx, r, DaemonSets, &appsv1.DaemonSetList{}, func(*appsv1.DaemonSet) bool { return true }, client.InNamespace(namespace))
}

// Pods reads the pods of a namespace that keep accepts.
func (r *Reader) Pods(ctx context.Context, namespace string, keep func(*corev1.Pod) bool) ([]corev1.Pod, error) {
	return listOf(ctx, r, Pods, &corev1.PodList{}, keep, client.InNamespace(namespace))
}

// Nodes reads the metadata and addresses of all Nodes: a large cluster has thousands.
func (r *Reader) Nodes(ctx context.Context) ([]corev1.Node, error) {
	return listOf(ctx, r, Nodes, &corev1.NodeList{}, func(node *corev1.Node) bool {
		node.ManagedFields = nil
		node.Spec, node.Status = corev1.NodeSpec{}, corev1.NodeStatus{Addresses: node.Status.Addresses}
		return true
	})
}

// ConfigMap reads one ConfigMap; nil: it does not exist.
func (r *Reader) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	out := &corev1.ConfigMap{}
	err := r.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, out)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // documented
	}
	if err != nil {
		return nil, r.explain(ConfigMaps, err)
	}
	return out, nil
}

// listOf reads the objects of a kind that keep accepts, page by page.
func listOf[T any, P interface {
	*T
	client.Object
}](ctx context.Context, r *Reader, of Kind, empty runtime.Object, keep func(P) bool, only ...client.ListOption) ([]T, error) {
	var out []T
	err := r.each(ctx, empty, pageSize, func(o client.Object) error {
		if object := any(o).(P); keep(object) {
			out = append(out, *object)
		}
		return nil
	}, only...)
	if err != nil {
		return nil, r.explain(of, err)
	}
	return out, nil
}

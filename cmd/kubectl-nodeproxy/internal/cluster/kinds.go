package cluster

import (
	"cmp"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Kind names a list of Objects, as permissions do.
type Kind string

// Kinds that can be requested.
const (
	NodeProxies          Kind = "nodeproxies"
	NodeProxyRules       Kind = "nodeproxyrules"
	ServiceProxyRules    Kind = "serviceproxyrules"
	NodeProxyPolicies    Kind = "nodeproxypolicies"
	ServiceProxyPolicies Kind = "serviceproxypolicies"
	Namespaces           Kind = "namespaces"
	Services             Kind = "services"
	EndpointSlices       Kind = "endpointslices"
	Pods                 Kind = "pods"
	ConfigMaps           Kind = "configmaps"
	DaemonSets           Kind = "daemonsets"
	Nodes                Kind = "nodes"
)

// kind has what it takes to read a kind.
type kind struct {
	schema.GroupVersionKind
	scope meta.RESTScope
	store store // nil: the kind is no list of Objects
}

// store sets a field of Objects. each visits the objects.
type store func(into *Objects, each func(visit func(client.Object) error) error) error

var kinds = map[Kind]kind{
	NodeProxies: own("NodeProxy", storing(func(o *Objects, all []v1alpha1.NodeProxy) {
		if i := slices.IndexFunc(all, func(np v1alpha1.NodeProxy) bool { return np.Name == v1alpha1.NodeProxyName }); i >= 0 {
			o.NodeProxy = &all[i]
		}
	})),
	NodeProxyRules:       own("NodeProxyRules", storing(func(o *Objects, all []v1alpha1.NodeProxyRules) { o.NodeRules = all })),
	ServiceProxyRules:    own("ServiceProxyRules", storing(func(o *Objects, all []v1alpha1.ServiceProxyRules) { o.ServiceRules = all })),
	NodeProxyPolicies:    own("NodeProxyPolicy", storing(func(o *Objects, all []v1alpha1.NodeProxyPolicy) { o.NodePolicies = all })),
	ServiceProxyPolicies: own("ServiceProxyPolicy", storing(func(o *Objects, all []v1alpha1.ServiceProxyPolicy) { o.ServicePolicies = all })),
	Namespaces: {corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot,
		storing(func(o *Objects, all []corev1.Namespace) { o.Namespaces = all })},
	Services: {corev1.SchemeGroupVersion.WithKind("Service"), meta.RESTScopeNamespace,
		storing(func(o *Objects, all []corev1.Service) { o.Services = all })},
	Pods: {corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace,
		storing(func(o *Objects, all []corev1.Pod) { o.Pods = all })},
	EndpointSlices: {discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), meta.RESTScopeNamespace,
		storing(func(o *Objects, all []discoveryv1.EndpointSlice) { o.EndpointSlices = all })},
	ConfigMaps: {corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace, nil},
	DaemonSets: {appsv1.SchemeGroupVersion.WithKind("DaemonSet"), meta.RESTScopeNamespace, nil},
	Nodes:      {corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot, nil},
}

func own(name string, s store) kind {
	return kind{v1alpha1.GroupVersion.WithKind(name), meta.RESTScopeRoot, s}
}

// storing returns a store of trimmed objects, sorted by namespace and name.
func storing[T any, P interface {
	*T
	client.Object
}](set func(*Objects, []T)) store {
	return func(into *Objects, each func(visit func(client.Object) error) error) error {
		var all []T
		err := each(func(o client.Object) error {
			trim(o)
			all = append(all, *any(o).(P))
			return nil
		})
		slices.SortFunc(all, func(a, b T) int {
			return cmp.Or(cmp.Compare(P(&a).GetNamespace(), P(&b).GetNamespace()), cmp.Compare(P(&a).GetName(), P(&b).GetName()))
		})
		set(into, all)
		return err
	}
}

// trim drops what no command needs, page by page, because a large cluster has tens of
// thousands of pods: managed fields, and most of the pods' specs.
func trim(object client.Object) {
	object.SetManagedFields(nil)
	if pod, is := object.(*corev1.Pod); is {
		pod.Annotations, pod.OwnerReferences = nil, nil
		s := pod.Spec
		pod.Spec = corev1.PodSpec{NodeName: s.NodeName, HostNetwork: s.HostNetwork, NodeSelector: s.NodeSelector, OS: s.OS}
	}
}

// mapper knows the kinds without discovery requests.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for name, k := range kinds {
		resource := k.GroupVersion().WithResource(string(name))
		m.AddSpecific(k.GroupVersionKind, resource, resource, k.scope)
	}
	return m
}

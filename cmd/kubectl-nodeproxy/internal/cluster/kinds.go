package cluster

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// kind has what it takes to read a kind.
type kind struct {
	gvk   schema.GroupVersionKind
	scope meta.RESTScope
	read  func(ctx context.Context, from client.Reader, into *Objects, page int64, only ...client.ListOption) error
}

func kinds() map[Kind]kind {
	own := func(name string) kind {
		return kind{gvk: v1alpha1.GroupVersion.WithKind(name), scope: meta.RESTScopeRoot}
	}
	core := func(name string) kind {
		return kind{gvk: corev1.SchemeGroupVersion.WithKind(name), scope: meta.RESTScopeNamespace}
	}
	all := map[Kind]kind{
		NodeProxies: own("NodeProxy").reads(readNodeProxy),
		NodeProxyRules: own("NodeProxyRules").reads(reader(
			func(l *v1alpha1.NodeProxyRulesList) []v1alpha1.NodeProxyRules { return l.Items },
			func(o *Objects) *[]v1alpha1.NodeProxyRules { return &o.NodeRules })),
		ServiceProxyRules: own("ServiceProxyRules").reads(reader(
			func(l *v1alpha1.ServiceProxyRulesList) []v1alpha1.ServiceProxyRules { return l.Items },
			func(o *Objects) *[]v1alpha1.ServiceProxyRules { return &o.ServiceRules })),
		NodeProxyPolicies: own("NodeProxyPolicy").reads(reader(
			func(l *v1alpha1.NodeProxyPolicyList) []v1alpha1.NodeProxyPolicy { return l.Items },
			func(o *Objects) *[]v1alpha1.NodeProxyPolicy { return &o.NodePolicies })),
		ServiceProxyPolicies: own("ServiceProxyPolicy").reads(reader(
			func(l *v1alpha1.ServiceProxyPolicyList) []v1alpha1.ServiceProxyPolicy { return l.Items },
			func(o *Objects) *[]v1alpha1.ServiceProxyPolicy { return &o.ServicePolicies })),
		Namespaces: core("Namespace").reads(reader(
			func(l *corev1.NamespaceList) []corev1.Namespace { return l.Items },
			func(o *Objects) *[]corev1.Namespace { return &o.Namespaces })),
		Services: core("Service").reads(reader(
			func(l *corev1.ServiceList) []corev1.Service { return l.Items },
			func(o *Objects) *[]corev1.Service { return &o.Services })),
		Pods: core("Pod").reads(reader(
			func(l *corev1.PodList) []corev1.Pod { return l.Items },
			func(o *Objects) *[]corev1.Pod { return &o.Pods })),
		EndpointSlices: kind{gvk: discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), scope: meta.RESTScopeNamespace}.reads(reader(
			func(l *discoveryv1.EndpointSliceList) []discoveryv1.EndpointSlice { return l.Items },
			func(o *Objects) *[]discoveryv1.EndpointSlice { return &o.EndpointSlices })),
	}
	namespaces := all[Namespaces]
	namespaces.scope = meta.RESTScopeRoot
	all[Namespaces] = namespaces
	return all
}

func (k kind) reads(read func(context.Context, client.Reader, *Objects, int64, ...client.ListOption) error) kind {
	k.read = read
	return k
}

// mapper knows the kinds without discovery requests.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for name, k := range kinds() {
		resource := k.gvk.GroupVersion().WithResource(string(name))
		m.AddSpecific(k.gvk, resource, resource, k.scope)
	}
	return m
}

// reader returns a function that reads all pages of a list into a field of Objects.
func reader[L, T any, P interface {
	*L
	client.ObjectList
}](items func(P) []T, field func(*Objects) *[]T) func(context.Context, client.Reader, *Objects, int64, ...client.ListOption) error {
	return func(ctx context.Context, from client.Reader, into *Objects, page int64, only ...client.ListOption) error {
		var found []T
		next := ""
		for first := true; first || next != ""; first = false {
			list := P(new(L))
			if err := from.List(ctx, list, append(slices.Clone(only), client.Limit(page), client.Continue(next))...); err != nil {
				return err
			}
			for _, item := range items(list) {
				trim(&item)
				found = append(found, item)
			}
			next = list.GetContinue()
		}
		slices.SortFunc(found, func(a, b T) int { return nameOf(&a).Compare(nameOf(&b)) })
		*field(into) = found
		return nil
	}
}

// nameOf returns the name of an object of one of the kinds.
func nameOf[T any](object *T) Name {
	o, err := meta.Accessor(any(object))
	if err != nil {
		return Name{}
	}
	return Name{Namespace: o.GetNamespace(), Name: o.GetName()}
}

func readNodeProxy(ctx context.Context, from client.Reader, into *Objects, page int64, only ...client.ListOption) error {
	list := &v1alpha1.NodeProxyList{}
	if err := from.List(ctx, list, append(slices.Clone(only), client.Limit(page))...); err != nil {
		return err
	}
	for i := range list.Items {
		if list.Items[i].Name == v1alpha1.NodeProxyName {
			into.NodeProxy = &list.Items[i]
		}
	}
	return nil
}

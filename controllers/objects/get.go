package objects

import (
	"context"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// NewScheme returns a scheme with every kind that the reconcilers use.
func NewScheme() (*runtime.Scheme, error) {
	builder := runtime.NewSchemeBuilder(
		admissionv1.AddToScheme, appsv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme,
		coordinationv1.AddToScheme, networkingv1.AddToScheme, v1alpha1.AddToScheme,
	)
	s := runtime.NewScheme()
	if err := builder.AddToScheme(s); err != nil {
		return nil, fmt.Errorf("build scheme: %w", err)
	}
	return s, nil
}

// Get reads an object and reports whether it exists.
func Get(ctx context.Context, c client.Reader, key client.ObjectKey, into client.Object) (bool, error) {
	err := c.Get(ctx, key, into)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get %T %s: %w", into, key, err)
	}
	return err == nil, nil
}

// Find returns an object, nil if it does not exist.
func Find[T any, P interface {
	*T
	client.Object
}](ctx context.Context, c client.Reader, key client.ObjectKey) (P, error) {
	object := P(new(T))
	if found, err := Get(ctx, c, key, object); err != nil || !found {
		return nil, err
	}
	return object, nil
}

// NodeProxy returns the NodeProxy, nil if there is none.
func NodeProxy(ctx context.Context, c client.Reader) (*v1alpha1.NodeProxy, error) {
	return Find[v1alpha1.NodeProxy](ctx, c, client.ObjectKey{Name: v1alpha1.NodeProxyName})
}

// CleansUp reports whether the deletion of NodeProxy removes the rules from the nodes.
func CleansUp(np *v1alpha1.NodeProxy) bool {
	return ptr.Deref(np.Spec.RemovalPolicy, "") == v1alpha1.RemovalCleanup
}

// BeingRemoved reports whether NodeProxy, which may be nil, is being deleted together with the
// rules. Nothing is rendered then.
func BeingRemoved(np *v1alpha1.NodeProxy) bool {
	return np != nil && np.DeletionTimestamp != nil && CleansUp(np)
}

// SwitchedOn reports whether to render: NodeProxy exists, or objects that were rendered when it did,
// and NodeProxy is not being removed with everything rendered.
func SwitchedOn(ctx context.Context, c client.Reader) (bool, error) { return MayCreate(ctx, c, c) }

// MayCreate is SwitchedOn before an object is created. Each kind has a watch of its own: the cache
// may know that NodeProxy is gone and still have rendered objects that were deleted before it, so
// the API server itself must have one.
func MayCreate(ctx context.Context, cached, live client.Reader) (bool, error) {
	np, err := NodeProxy(ctx, cached)
	if err != nil || np != nil {
		return np != nil && !BeingRemoved(np), err
	}
	return anyRendered(ctx, live)
}

func anyRendered(ctx context.Context, c client.Reader) (bool, error) {
	for _, list := range []client.ObjectList{&v1alpha1.ServiceProxyRulesList{}, &v1alpha1.NodeProxyRulesList{}} {
		if err := c.List(ctx, list, client.Limit(1)); err != nil {
			return false, fmt.Errorf("list %T: %w", list, err)
		}
		if meta.LenList(list) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// ServiceOfRules returns the Service of ServiceProxyRules by their name. A namespace has no dots. For a name without a dot, which no Service has, it returns no
// namespace; such rules are removed.
func ServiceOfRules(rules client.Object) types.NamespacedName {
	namespace, name, found := strings.Cut(rules.GetName(), ".")
	if !found {
		return types.NamespacedName{Name: rules.GetName()}
	}
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// RulesName is the inverse of ServiceOfRules.
func RulesName(svc types.NamespacedName) string {
	if svc.Namespace == "" {
		return svc.Name
	}
	return v1alpha1.ServiceProxyRulesName(svc.Namespace, svc.Name)
}

// CompareNames orders names for slices.SortFunc.
func CompareNames(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }

// Older compares two resourceVersions as numbers. An invalid one is older than any.
func Older(a, b string) bool {
	if order, err := resourceversion.CompareResourceVersion(a, b); err == nil {
		return order < 0
	}
	_, err := resourceversion.CompareResourceVersion(b, b)
	return err == nil
}

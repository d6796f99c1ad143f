package objects

import (
	"context"
	"fmt"
	"maps"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// NewScheme returns a scheme with every kind that the reconcilers use.
func NewScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionv1.AddToScheme, appsv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme,
		coordinationv1.AddToScheme, networkingv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("build scheme: %w", err)
		}
	}
	return s, nil
}

// Get reads an object and reports whether it exists.
func Get(ctx context.Context, c client.Reader, key client.ObjectKey, into client.Object) (bool, error) {
	if err := c.Get(ctx, key, into); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get %T %s: %w", into, key, err)
	} else if err != nil {
		return false, nil
	}
	return true, nil
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

// CleansUp reports whether the rules are to be removed from the nodes with NodeProxy.
func CleansUp(np *v1alpha1.NodeProxy) bool {
	return np.Spec.RemovalPolicy != nil && *np.Spec.RemovalPolicy == v1alpha1.RemovalCleanup
}

// BeingRemoved reports whether NodeProxy, which may be nil, is being deleted together with the
// rules. Nothing is rendered then.
func BeingRemoved(np *v1alpha1.NodeProxy) bool {
	return np != nil && np.DeletionTimestamp != nil && CleansUp(np)
}

// SwitchedOn reports whether nodeproxy was ever switched on: NodeProxy exists, or objects that were
// rendered when it did. Otherwise nothing is rendered, nor while NodeProxy is being removed
// together with everything rendered.
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
	var services v1alpha1.ServiceProxyRulesList
	if err := c.List(ctx, &services, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list ServiceProxyRules: %w", err)
	}
	if len(services.Items) > 0 {
		return true, nil
	}
	var nodes v1alpha1.NodeProxyRulesList
	if err := c.List(ctx, &nodes, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list NodeProxyRules: %w", err)
	}
	return len(nodes.Items) > 0, nil
}

// ServiceOfRules returns the Service of ServiceProxyRules by their name, because labels can be
// edited. A namespace has no dots. A name without any dot stands for itself: no Service renders
// such an object, so it will be removed.
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

// CompareNames orders names as slices.SortFunc needs it.
func CompareNames(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }

// Older compares two resourceVersions as numbers. What is none is older than any.
func Older(a, b string) bool {
	if order, err := resourceversion.CompareResourceVersion(a, b); err == nil {
		return order < 0
	}
	_, err := resourceversion.CompareResourceVersion(b, b)
	return err == nil
}

// Merge sets labels or annotations over others, which may be nil.
func Merge(base, over map[string]string) map[string]string {
	if base == nil {
		return over
	}
	maps.Copy(base, over)
	return base
}

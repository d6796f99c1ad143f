// Package v1alpha1 defines the kinds of nodeproxy.io/v1alpha1, their defaults and limits, and
// the names that the controller and the agents agree on. It has no other behavior: it is what
// both sides share. make generate turns its comments into CRD descriptions and docs/api.md.
//
// Where to look:
//   - nodeproxy_types.go, nodeproxypolicy_types.go, serviceproxypolicy_types.go: the kinds
//     that users write; settings.go: the settings of a node.
//   - nodeproxyrules_types.go, serviceproxyrules_types.go: the rendered kinds.
//   - names.go: names of objects, labels, annotations, conditions and reasons; versions.
//   - defaults.go, validate.go, limits.go: what settings and Services may be.
//
// +kubebuilder:object:generate=true
// +groupName=nodeproxy.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "nodeproxy.io", Version: "v1alpha1"}

// AddToScheme registers every kind of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&NodeProxy{}, &NodeProxyList{},
		&NodeProxyRules{}, &NodeProxyRulesList{},
		&ServiceProxyRules{}, &ServiceProxyRulesList{},
		&NodeProxyPolicy{}, &NodeProxyPolicyList{},
		&ServiceProxyPolicy{}, &ServiceProxyPolicyList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// Package v1alpha1 holds the kinds of nodeproxy.io/v1alpha1, their documented
// defaults and the names that the controller and the agents agree on. It has
// no behaviour beyond those shared definitions: it is the only package that
// both sides import.
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

// AddToScheme registers every kind of this package with a scheme.
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

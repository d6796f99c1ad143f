package preview

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Objects are those from which the controllers render, of a cluster or from files.
type Objects struct {
	// NodeProxy is nil if there is none.
	NodeProxy       *v1alpha1.NodeProxy
	NodePolicies    []v1alpha1.NodeProxyPolicy
	ServicePolicies []v1alpha1.ServiceProxyPolicy

	Nodes      []corev1.Node
	Namespaces []corev1.Namespace
	Services   []corev1.Service
	Slices     []discoveryv1.EndpointSlice

	// NodeRules and ServiceRules are the stored ones.
	NodeRules    []v1alpha1.NodeProxyRules
	ServiceRules []v1alpha1.ServiceProxyRules
}

// Overlay adds what users have written to existing objects: a NodeProxy and policies replace those
// with their names, or are added. With prune, policies that are not among them are removed.
// Everything else stays.
func (o *Objects) Overlay(written *Objects, prune bool) {
	if written.NodeProxy != nil {
		o.NodeProxy = written.NodeProxy
	}
	o.NodePolicies = overlay(o.NodePolicies, written.NodePolicies, prune, func(p *v1alpha1.NodeProxyPolicy) string { return p.Name })
	o.ServicePolicies = overlay(o.ServicePolicies, written.ServicePolicies, prune, func(p *v1alpha1.ServiceProxyPolicy) string { return p.Name })
}

func overlay[T any](below, above []T, prune bool, name func(*T) string) []T {
	if prune {
		return above
	}
	written := map[string]bool{}
	for i := range above {
		written[name(&above[i])] = true
	}
	out := make([]T, 0, len(below)+len(above))
	for i := range below {
		if !written[name(&below[i])] {
			out = append(out, below[i])
		}
	}
	return append(out, above...)
}

// Facts counts the objects that users do not write for nodeproxy.
func (o *Objects) Facts() int {
	return len(o.Nodes) + len(o.Namespaces) + len(o.Services) + len(o.Slices) + len(o.NodeRules) + len(o.ServiceRules)
}

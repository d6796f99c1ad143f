package cluster

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Objects are a cluster's objects at one moment, each list sorted by namespace and name.
// Kinds that were not requested are empty.
type Objects struct {
	// Time is when they were read, by the API server's clock or, if that is unknown, by that
	// of the plugin's machine.
	Time time.Time
	// Ahead is how far the clock of that machine is ahead of the API server's.
	Ahead time.Duration

	NodeProxy       *v1alpha1.NodeProxy // nil: there is none
	NodeRules       []v1alpha1.NodeProxyRules
	ServiceRules    []v1alpha1.ServiceProxyRules
	NodePolicies    []v1alpha1.NodeProxyPolicy
	ServicePolicies []v1alpha1.ServiceProxyPolicy

	Namespaces     []corev1.Namespace
	Services       []corev1.Service
	EndpointSlices []discoveryv1.EndpointSlice
	Pods           []corev1.Pod

	// Unread are the optional kinds that could not be read.
	Unread []Unread
}

// Newer returns an error if what, such as NodeProxyRules node-1, has a format of a newer
// release than the plugin's.
func (o *Objects) Newer(what string, format int32, plugin string) error {
	if format <= v1alpha1.FormatVersion {
		return nil
	}
	controller := "the controller's release"
	if o.NodeProxy != nil && o.NodeProxy.Status.Version != "" {
		controller = fmt.Sprintf("the controller's release, %s", o.NodeProxy.Status.Version)
	}
	return fmt.Errorf("%s: format %d needs a newer release than this plugin, %s, which supports formats up to %d: install the plugin of %s",
		what, format, plugin, v1alpha1.FormatVersion, controller)
}

// Unread is a kind that could not be read.
type Unread struct {
	Kind Kind
	// Why is human-readable: what is missing and what to do.
	Why string
}

// Kind names a list of Objects.
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
)

package cluster

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
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
	// Docs is the documentation of the plugin's release.
	Docs Docs

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

// NewerNode returns an error if the rules of a node have a format of a newer release than the
// plugin's.
func (o *Objects) NewerNode(rules *v1alpha1.NodeProxyRules) error {
	return o.newer("NodeProxyRules "+rules.Name, rules.Spec.FormatVersion)
}

// NewerService returns an error if the rules of a Service have a format of a newer release than
// the plugin's.
func (o *Objects) NewerService(rules *v1alpha1.ServiceProxyRules) error {
	return o.newer("ServiceProxyRules "+rules.Name, rules.Spec.FormatVersion)
}

func (o *Objects) newer(what string, format int32) error {
	if format <= v1alpha1.FormatVersion {
		return nil
	}
	controller := "the controller's release"
	if o.NodeProxy != nil && o.NodeProxy.Status.Version != "" {
		controller += ", " + o.NodeProxy.Status.Version
	}
	return fmt.Errorf("%s: format %d needs a newer release than this plugin, %s, which supports formats up to %d: install the plugin of %s",
		what, format, o.Docs, v1alpha1.FormatVersion, controller)
}

// RulesOf returns the rules of a Service that agents use, or nil.
func (o *Objects) RulesOf(service dataplane.ServiceName) *v1alpha1.ServiceProxyRules {
	for i := range o.ServiceRules {
		if name, ok := combine.ServiceOf(o.ServiceRules[i].Name); ok && name == service {
			return &o.ServiceRules[i]
		}
	}
	return nil
}

// SuggestService returns Services that have rules and a similar name, like Suggest.
func (o *Objects) SuggestService(like dataplane.ServiceName) string {
	var known []string
	for _, rules := range o.ServiceRules {
		if name, ok := combine.ServiceOf(rules.Name); ok {
			known = append(known, name.String())
		}
	}
	return Suggest(like.String(), known)
}

// Unread is a kind that could not be read.
type Unread struct {
	Kind Kind
	// Why is human-readable: what is missing and what to do.
	Why string
}

// Unreadable explains why one of the kinds could not be read; empty: all could.
func (o *Objects) Unreadable(kinds ...Kind) string {
	for _, u := range o.Unread {
		if slices.Contains(kinds, u.Kind) {
			return u.Why
		}
	}
	return ""
}

// Finished reports whether a pod has run to its end.
func Finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
